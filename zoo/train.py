"""Trains a router: `python -m zoo.train algo=r2r models=tiny out=results/r2r [seed=0] [key=value ...]`.

`models=` names a file of conf/models, whose roles may be overridden with any Hugging Face pair of one vocabulary:
`models.roles.small.path=Qwen/Qwen3-0.6B models.embedded=false workload.path=problems.jsonl`. An interrupted training
goes on where it was when the same command is given again. What else can be set stands in `Options` of
zoo/<algo>/train.py.
"""
from __future__ import annotations

import importlib

from tokenrouter.core import InputError
from zoo.cli import convert, run, split_arguments
from zoo.setup import Setup


def main(arguments: list[str]) -> None:
    overrides, own = split_arguments(arguments)
    setup = Setup.compose(overrides)
    name = setup.config["algo"]["name"]
    try:
        trainer = importlib.import_module(f"zoo.{name}.train")
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(f"zoo.{name}"):
            raise
        raise InputError(f"algo={name}: has nothing to train; allowed is one with a module zoo.{name}.train") from None
    options = convert(own, trainer.Options)
    setup.seed = options.seed
    trainer.train(setup, options)


if __name__ == "__main__":
    run(main)
