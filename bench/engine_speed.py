"""Time of a decode step by batch: both runners of the embedded engine, the fast one also without lanes, and
transformers with its own cache.

    python bench/engine_speed.py MODEL_FOLDER [--dummy] [--context 200] [--batches 1,4,8,16] [--rounds 40]

The systems take turns step by step, so that what else the machine does meets all of them alike; a figure is the
median over the rounds, in ms of the thread's CPU time, batch assembly and argmax included.
"""
from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others

import torch
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache

from tokenrouter.core import InputError
from tokenrouter.engine.base import Row
from tokenrouter.engine.torch.engine import TorchEngine
from tokenrouter.engine.torch.load import load_model
from zoo.cli import progress_bar

Step = Callable[[], object]


def engine_step(engine: TorchEngine, batch: int, context: int, rounds: int) -> Step:
    """A step of `batch` sequences that hold `context` tokens at first."""
    vocab = engine.info.vocab_size
    rids = [f"{batch}-{n}" for n in range(batch)]
    for n, rid in enumerate(rids):
        ids = torch.randint(vocab, (context,), generator=torch.Generator().manual_seed(n)).tolist()
        engine.open(rid, ids)
        engine.allocate(rid, context + rounds + 1)
        engine.step([Row(rid, ids)])
    tokens = [[0]] * batch

    def step() -> None:
        output = engine.step([Row(rid, ids) for rid, ids in zip(rids, tokens, strict=True)])
        tokens[:] = output.logits.argmax(-1, keepdim=True).tolist()

    return step


def transformers_step(path: str, load_format: str, batch: int, context: int) -> Step:
    model = load_model(path, dtype="float32", device=torch.device("cpu"), load_format=load_format, seed=0)
    ids = torch.randint(model.config.vocab_size, (batch, context), generator=torch.Generator().manual_seed(0))
    cache = DynamicCache(config=model.config)
    tokens = model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)

    def step() -> None:
        nonlocal tokens
        tokens = model(input_ids=tokens, past_key_values=cache).logits[:, -1:].argmax(-1)

    return step


def measure(steps: dict[str, Step], rounds: int, progress: Callable[[int], object]) -> dict[str, float]:
    """Median ms of each step, taken in turns; `progress` is told of each turn."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.thread_time()
            step()
            times[name].append(1e3 * (time.thread_time() - start))
        progress(1)
    return {name: statistics.median(taken) for name, taken in times.items()}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="folder of the model")
    parser.add_argument("--dummy", action="store_true", help="random weights of the folder's config")
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--batches", default="1,4,8,16")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # transformers renames its cache argument
    load_format = "dummy" if options.dummy else "auto"
    batches = [int(batch) for batch in options.batches.split(",")]
    room = (options.context + options.rounds + 64) * sum(batches)
    engines = {}
    table = Table(title=f"decode step, CPU ms\ncontext {options.context}, fp32, median of {options.rounds}")
    with progress_bar() as bar:
        kinds = (("hf", "hf", True), ("fast, no lanes", "fast", False), ("fast", "fast", True))
        for name, runner, lanes in bar.track(kinds, description="engines"):
            try:
                engines[name] = TorchEngine(options.path, runner=runner, load_format=load_format, capacity_tokens=room,
                                            lanes=lanes)
            except InputError as error:
                parser.error(str(error))
        for column in ("batch", "transformers", *engines):
            table.add_column(column, justify="right")
        turns = bar.add_task("turns", total=len(batches) * options.rounds)
        for batch in batches:
            steps = {"transformers": transformers_step(options.path, load_format, batch, options.context)}
            for name, engine in engines.items():
                steps[name] = engine_step(engine, batch, options.context, options.rounds)
            medians = measure(steps, options.rounds, partial(bar.advance, turns))
            table.add_row(str(batch), *(f"{medians[name]:.2f}" for name in steps))
    Console().print(table)


if __name__ == "__main__":
    main()
