"""What routing is worth: accuracy and share of the large model's tokens, on the same problems.

    python bench/quality.py [models=tiny] [problems=1000] [algos=r2r,entropy,random] [out=results/quality/tiny.json]

The two models alone, the given algorithms at the thresholds in conf/algo/, and the oracle: the large model's answers,
of whose tokens it writes only those that the small model would not have proposed. `algo.field=value` goes to the given
algorithms. An interrupted command goes on when it is given again.
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from tokenrouter.core import InputError
from tokenrouter.engine.base import Engine
from zoo.cli import convert, progress_bar, run, split_arguments
from zoo.offline import Offline, Progress, teacher_forced
from zoo.points import Points, identity, outcome_of, plain
from zoo.quality import Outcome, as_row, measure
from zoo.setup import Setup
from zoo.walk import Record


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    problems: int = 1000  # of the `test` split
    algos: str = "r2r,entropy,random"
    seed: int = 0
    decode_batch: int = 48
    out: str = ""


def oracle(small: Engine, records: Sequence[Record], llm: Outcome, progress: Progress) -> Outcome:
    """The outcome of replacing exactly the proposals that differ from the large model's."""
    vocab_size, differing, total = small.info.vocab_size, 0, 0
    for (logits, _), record in zip(teacher_forced(small, records), records, strict=True):
        proposals = logits[:, :vocab_size].argmax(dim=-1).tolist()
        differing += sum(p != token for p, token in zip(proposals, record.token_ids, strict=True))
        total += len(record.token_ids)
        progress(1)
    return Outcome(llm.correct, differing / total, differing / total, llm.tokens)


def main(arguments: list[str]) -> None:
    overrides, own = split_arguments(arguments)
    options = convert(own, Options)
    if options.problems < 1:
        raise InputError(f"problems={options.problems}: allowed is >= 1")
    names = ["slm_only", "llm_only", *(name for name in options.algos.split(",") if name)]
    shared = [override for override in overrides if not override.startswith("algo")]
    setups = {
        name: Setup.compose([*(shared if name.endswith("_only") else overrides), f"algo={name}"], options.seed)
        for name in names
    }
    setup = setups["llm_only"]
    workload, tasks = setup.problems("test", options.problems)
    length = max(len(setup.prompt(task)) for task in tasks) + workload.max_tokens
    roles = {"small", "large", *(role for one in setups.values() for role in one.algorithm.roles)}
    engines = {role: setup.engine(role, options.decode_batch, length) for role in sorted(roles)}
    about = {"data": workload.data_source, "problems": len(tasks), "batch": options.decode_batch,
             "alone": [identity(setups[name]) for name in ("slm_only", "llm_only")]}
    file = Path(options.out or f"results/quality/{setup.config['models']['name']}.json")

    def decode(name: str, bar: Bar) -> dict[str, Any]:
        algorithm = setups[name].algorithm
        offline = Offline(algorithm, [engines[role] for role in algorithm.roles], batch_size=options.decode_batch)
        large = algorithm.roles.index("large") if "large" in algorithm.roles else None
        task = bar.add_task(name, total=len(tasks))
        outcome, records = measure(setup, workload, tasks, offline, large, partial(bar.advance, task))
        if name != "llm_only":
            return {"outcome": plain(outcome)}
        task = bar.add_task("oracle", total=len(tasks))
        return {"outcome": plain(outcome),
                "oracle": plain(oracle(engines["small"], records, outcome, partial(bar.advance, task)))}

    with Points("quality", about) as kept:
        with progress_bar() as bar:
            found = {name: kept.get(identity(setups[name]), partial(decode, name, bar)) for name in names}
        outcomes = {name: outcome_of(point["outcome"]) for name, point in found.items()}
        outcomes["oracle"] = outcome_of(found["llm_only"]["oracle"])
        thresholds = {name: setups[name].config["algo"].get("threshold") for name in names}
        rows = {
            name: {"threshold": thresholds.get(name), **as_row(outcome, outcomes["llm_only"])}
            for name, outcome in outcomes.items()
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({
            "models": {role: {"id": setup.model_name(role), "params": engine.info.num_params}
                       for role, engine in engines.items()},
            "data": workload.data_source, "problems": len(tasks), "seed": options.seed, "algorithms": rows,
        }, indent=1) + "\n")
    _print(rows, workload.data_source, file)


def _print(rows: dict[str, dict[str, Any]], data: str, file: Path) -> None:
    table = Table("algorithm", "threshold", "accuracy", "95 %", "of the large model's", "LLM tokens", title=data)
    for name, row in rows.items():
        threshold = row["threshold"]
        table.add_row(
            name, "" if threshold is None else str(threshold), f"{row['accuracy']:.1%}",
            "{:.1%} to {:.1%}".format(*row["accuracy_ci95"]), f"{row['quality']:.1%}",
            f"{row['llm_token_fraction']:.2%}",
        )
    console = Console()
    console.print(table)
    console.print(str(file), highlight=False)


if __name__ == "__main__":
    run(main)
