"""The problems that take a model long: found in a finished run, listed in a file that a workload can be limited to.

    python -m zoo.tasks.longer run=results/runs/<date>/<run> tokens=8192 out=aime_high.json

A problem is listed if one of its answers in the run has more than `tokens` tokens, or was cut off there. The paper's
high-effort workload: AIME 2024, by the answers of Qwen3-32B (system=llm_only), tokens=8192.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tokenrouter.core import InputError
from tokenrouter.paths import resolve
from zoo.cli import convert, run, split_arguments
from zoo.tasks.rows import Task


class Listed(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which problems of which data; `by`: the model whose answers decided, at its revision."""

    data_source: str
    tokens: int
    by: str
    revision: str | None
    ids: list[str]


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    run: str
    out: str
    tokens: int = 8192


def select(tasks: Sequence[Task], source: str, path: str) -> list[Task]:
    """Those of `tasks`, which come from `source`, that the list at `path` names. InputError for one of other tasks."""
    listed = read(path)
    if listed.data_source != source:
        raise InputError(
            f"workload.only={path!r}: lists problems of {listed.data_source}; allowed is a list of {source}'s")
    found = [task for task in tasks if task.id in set(listed.ids)]
    unknown = sorted(set(listed.ids) - {task.id for task in found})
    if unknown or not found:
        raise InputError(
            f"workload.only={path!r}: lists {', '.join(map(repr, unknown[:5])) or 'no ids'}"
            f"{f' and {len(unknown) - 5} more' if len(unknown) > 5 else ''}; allowed is one or more ids of {source}'s")
    return found


def read(path: str) -> Listed:
    """InputError for what is no such list."""
    try:
        return msgspec.json.decode(resolve(path).read_bytes(), type=Listed)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            f"workload.only={path!r}: cannot be read ({error}); allowed is null, for all problems, or a list that "
            "`python -m zoo.tasks.longer run=... out=...` made from a run of the model whose answers decide"
        ) from None


def find(folder: Path, tokens: int) -> Listed:
    """The problems of a finished run with an answer of more than `tokens` tokens, or cut off there."""
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
        rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
        (model,) = summary["models"].values()
        limit, source = summary["sampling"]["max_tokens"], summary["provenance"]["data_source"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"run={str(folder)!r}: allowed is the folder of a run of one model ({error})") from None
    if limit < tokens:
        raise InputError(f"tokens={tokens}: allowed is at most {limit}, as the run's answers were cut off there")
    long = {
        row["id"] for row in rows
        if row["output_tokens"] > tokens or (row["output_tokens"] == tokens and row["finish_reason"] == "length")
    }
    if not long:
        raise InputError(f"tokens={tokens}: no answer in {str(folder)!r} has as many; allowed is fewer")
    ids = list(dict.fromkeys(row["id"] for row in rows if row["id"] in long))
    return Listed(data_source=source, tokens=tokens, by=model["id"], revision=model["revision"], ids=sorted(ids))


def main(arguments: list[str]) -> None:
    overrides, own = split_arguments(arguments)
    if overrides:
        raise InputError(f"{overrides[0]}: allowed are run=, tokens= and out=")
    options = convert(own, Options)
    listed = find(Path(options.run), options.tokens)
    try:
        Path(options.out).write_bytes(msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"out={options.out!r}: cannot be written ({error.strerror}); allowed is a file in a folder "
                         "that is there") from None
    print(f"{len(listed.ids)} problems: {options.out}")


if __name__ == "__main__":
    run(main)
