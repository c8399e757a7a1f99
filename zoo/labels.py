"""What trainings of the zoo share before the fit: two models, problems, and labelled rows that are kept on disk."""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from safetensors.torch import load_file, save_file

from tokenrouter.core import InputError
from tokenrouter.engine.routers import context_of
from zoo import weights
from zoo.cli import progress_bar
from zoo.fit import TrainOptions
from zoo.offline import Progress
from zoo.setup import Setup
from zoo.tasks.rows import Task
from zoo.walk import Record

Rows = TypeVar("Rows", bound=NamedTuple)


class Pair:
    """The models in the roles `small` and `large`, and the problems that a router for them learns from.

    `about` says of what labels are: the models, the data, the options in `labels_by`.
    """

    def __init__(self, setup: Setup, options: TrainOptions, labels_by: Sequence[str]) -> None:
        self.setup, self.options, self.folder = setup, options, Path(options.out)
        setup.check_vocabularies(("small", "large"))
        self.workload, self.tasks = setup.problems("router", options.problems)
        self.prompts = [setup.prompt(task) for task in self.tasks]
        length = max(map(len, self.prompts)) + self.workload.max_tokens
        self.small, self.large = (setup.engine(role, options.decode_batch, length) for role in ("small", "large"))
        models = {
            role: weights.describe(setup.model_name(role), context_of(engine))
            for role, engine in (("small", self.small), ("large", self.large))
        }
        roles = setup.config["models"]["roles"]
        labels = {name: getattr(options, name) for name in ("problems", "chunk", *labels_by)} | {
            "max_tokens": self.workload.max_tokens, "dtype": [roles[role]["dtype"] for role in ("small", "large")]}
        self.about = {"models": models, "data": self.workload.data_source, "labels": labels, "seed": setup.seed}

    def agree(self, record: Record, other: Record) -> bool:
        """Whether two decoded requests give the same answer."""
        first, second = (self.setup.answer(self.workload.grader, r) for r in (record, other))
        return self.setup.same(self.workload.grader, first, second)

    def right(self, record: Record, task: Task) -> bool:
        """Whether a decoded request gives the answer that is expected."""
        kind = self.workload.grader
        return self.setup.same(kind, self.setup.answer(kind, record), task.expected)

    def held(self, problems: torch.Tensor) -> torch.Tensor:
        """Which rows are held out, by the problem [N] that each is of."""
        return problems >= len(self.prompts) * (1 - self.options.held_out)

    def collect(self, kind: type[Rows], label: Callable[[slice], Rows], name: str = "labels") -> Rows:
        """The rows of all problems, kept in the folder `name`, whose labels are of this pair only."""
        _claim(self.folder / "labels.json", self.about)
        with progress_bar() as bar:
            task = bar.add_task(f"labelling problems ({name})", total=len(self.prompts))
            return collect(kind, label, len(self.prompts), self.folder / name, chunk=self.options.chunk,
                           progress=partial(bar.advance, task))

    def state_file(self, name: str = "training") -> Path:
        """Where a fit with these options keeps its progress."""
        return self.folder / f"{name}-{digest(self.options)}.safetensors"


def collect(
    kind: type[Rows], label: Callable[[slice], Rows], count: int, folder: Path, *, chunk: int,
    progress: Progress | None = None,
) -> Rows:
    """The rows of `count` problems, kept in `folder` in files of `chunk` problems: what is there is not done again.

    `label` gives the rows of a slice of the problems, whose column `problems` [N] counts from the slice's start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        file = folder / f"{start:06d}.safetensors"
        if not file.exists():
            save_file(label(part)._asdict(), file.with_suffix(".partial"))
            file.with_suffix(".partial").rename(file)
        columns = load_file(file)
        parts.append(kind(**(columns | {"problems": columns["problems"] + start})))
        if progress:
            progress(part.stop - start)
    return kind(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def digest(options: msgspec.Struct) -> str:
    return hashlib.blake2b(msgspec.json.encode(options), digest_size=4).hexdigest()


def _claim(file: Path, about: dict[str, Any]) -> None:
    """Note what the folder's labels are of; InputError if it has those of something else."""
    content = msgspec.json.format(msgspec.json.encode(about, order="deterministic"))
    if file.exists() and file.read_bytes() != content:
        raise InputError(f"out={file.parent}: holds labels of other models or data, or of other values of seed, "
                         f"{', '.join(about['labels'])}; allowed is a new folder, or that of the same labels")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
