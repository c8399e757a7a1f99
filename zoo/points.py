"""Finished points of a measurement, kept until all are there: an interrupted command goes on and repeats none."""
from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import transformers

from tokenrouter.cluster.models import revision
from tokenrouter.paths import ROOT, resolve
from zoo.quality import Outcome
from zoo.setup import Setup

FOLDER = Path("results", "runs")  # not beside the results: a new file there would count as a change of the checkout
CODE = ("tokenrouter", "zoo", "bench")


class Points:
    """A context. `about`: all that every point depends on, but code, libraries and device, which are added; equal ones
    share a file of JSON lines in FOLDER, which is removed when the context ends without an error."""

    def __init__(self, command: str, about: Any) -> None:
        where = [torch.__version__, transformers.__version__, _device()]
        self.file = FOLDER / f"{command}-{_digest([about, _code(), where])}.jsonl"
        self._found = dict(_read(self.file))

    def __enter__(self) -> Points:
        if self._found:
            print(f"{len(self._found)} points are there already: {self.file}", file=sys.stderr)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is None:
            self.file.unlink(missing_ok=True)
        elif self.file.is_file():
            print(f"finished points stay in {self.file}; the same command goes on", file=sys.stderr)

    def get(self, key: Any, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The point, plain for JSON, of this key (what it depends on besides `about`), measured unless it is there."""
        name = _digest(key)
        if name not in self._found:
            self._found[name] = measure()
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as lines:
                # A line of its own even behind one that was cut off.
                lines.write(f"\n{json.dumps({'key': name, 'point': self._found[name]})}\n")
        return self._found[name]


def identity(setup: Setup) -> dict[str, Any]:
    """What a decoded request depends on besides prompts, code and device: conf/, router weights, models, seed."""
    roles = {role: revision(setup.model_path(role), setup.revision(role)) for role in setup.algorithm.roles}
    return {"config": setup.config, "files": dict(_files(setup.config["algo"])), "models": roles, "seed": setup.seed}


def plain(outcome: Outcome) -> dict[str, Any]:
    return {**vars(outcome), "correct": outcome.correct.tolist()}


def outcome_of(stored: dict[str, Any]) -> Outcome:
    return Outcome(**{**stored, "correct": np.array(stored["correct"])})


def _read(file: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            found = json.loads(line)
        except ValueError:  # blank, or cut off
            continue
        yield found["key"], found["point"]


def _files(config: Any) -> Iterable[tuple[str, str]]:
    """Digests of the files that a configuration names."""
    if isinstance(config, dict | list):
        for value in config.values() if isinstance(config, dict) else config:
            yield from _files(value)
    elif isinstance(config, str):
        try:
            yield config, hashlib.sha256(resolve(config).read_bytes()).hexdigest()
        except (OSError, ValueError):
            return  # any other text


@cache
def _code() -> str:
    """Of all modules as they are: unlike a commit, it tells apart what was changed since."""
    digest = hashlib.sha256()
    for file in sorted(file for package in CODE for file in (ROOT / package).rglob("*.py")):
        digest.update(f"{file.relative_to(ROOT)} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
