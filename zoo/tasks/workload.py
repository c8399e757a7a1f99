"""A workload: which problems a run asks, in which order, and how answers are graded.

The same name means embedded problems for the embedded models, whose language is that of zoo/tasks/arithmetic.py, and
the data set on the hub for all others. Which it was is `data_source`, without which two results cannot be compared.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from omegaconf import OmegaConf

from tokenrouter.core import InputError
from tokenrouter.schema import convert
from zoo.tasks import answers, longer
from zoo.tasks.arithmetic import Generated
from zoo.tasks.hub import HubSet, read_hub
from zoo.tasks.lengths import RandomConfig, random_tasks
from zoo.tasks.rows import MARK, Columns, Task, fingerprint, read_file, to_tasks
from zoo.tasks.trajectories import Tokenize, TrajectoryConfig, load_trajectories

SESSIONS = 8  # more than the clients of most runs, so that a turn is asked when the one before it has ended

_Positive = Annotated[int, Meta(ge=1)]
_Config = TypeVar("_Config")


class Natural(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How models of natural language are asked."""

    prompt: str
    max_tokens: _Positive


class Embedded(Generated, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The set of generated problems, and how long answers may be.

    `output_tokens`: each is answered at exactly such a length, drawn evenly, and not graded. `grader`: instead of the
    workload's.
    """

    max_tokens: _Positive
    output_tokens: tuple[_Positive, _Positive] | None = None
    grader: str | None = None


class WorkloadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What conf/workload/aime.yaml explains, field by field."""

    name: str
    version: int
    grader: str
    columns: Columns
    hub: HubSet
    natural: Natural
    embedded: Embedded
    path: str | None = None
    max_tokens: _Positive | None = None
    answer_after: str | None = None
    only: str | None = None


@dataclass(frozen=True)
class Workload:
    """`problems` is the whole set; a run asks `n` draws from it. `max_tokens` bounds the accepted tokens of one."""

    name: str
    version: int
    data_source: str
    problems: list[Task]
    grader: str
    max_tokens: int
    n: int
    seed: int

    def draw(self, i: int) -> tuple[Task, int]:
        """The i-th task to ask, i >= 0, and its sample: how often it was drawn before.

        Each round asks every problem once, in an order of its own that `seed` decides. What lies from `n` on serves
        for warm-up. Conversations go on side by side, SESSIONS at a time, a turn of each after the other's.
        """
        sample, place = divmod(i, len(self.problems))
        if sample not in self._orders:
            self._orders[sample] = _order(self.problems, f"order-{self.seed}-{sample}")
        return self.problems[self._orders[sample][place]], sample

    @cached_property
    def _orders(self) -> dict[int, list[int]]:
        return {}


def _order(problems: Sequence[Task], seed: str) -> list[int]:
    turns: dict[str, list[int]] = {}
    for index, task in enumerate(problems):
        turns.setdefault(task.conversation or f"{index}", []).append(index)
    conversations = list(turns.values())
    random.Random(seed).shuffle(conversations)
    at_once = [conversations[start : start + SESSIONS] for start in range(0, len(conversations), SESSIONS)]
    return [index for some in at_once for turn in zip_longest(*some) for index in turn if index is not None]


def load_workload(
    config: Mapping[str, Any], *, embedded: bool, n: int, seed: int, tokenize: Tokenize | None = None
) -> Workload:
    """The workload that `config` (conf/workload/*.yaml) describes, for `n` requests.

    `embedded`: the models are the embedded ones. They are asked the bare question, others in the words of
    `natural.prompt`. `tokenize`: for workloads of prompts of a given length, which need one. Raises InputError, naming
    field, value and what is allowed, before anything slow is done where that is possible.
    """
    if n < 1:
        raise InputError(f"load.num_requests={n}: allowed is >= 1")
    match config.get("kind"):
        case None:
            return _questions(_convert(config, WorkloadConfig), embedded, n, seed)
        case "random":
            return _random(_convert(config, RandomConfig), n, seed)
        case "trajectories":
            return _trajectories(_convert(config, TrajectoryConfig), embedded, n, seed, tokenize)
        case kind:
            raise InputError(f"workload.kind={kind!r}: allowed is random, trajectories, or none for questions")


def _questions(spec: WorkloadConfig, embedded: bool, n: int, seed: int) -> Workload:
    grader = (embedded and spec.path is None and spec.embedded.grader) or spec.grader
    answers.check_kind(grader)
    if MARK not in spec.natural.prompt:
        raise InputError(f"workload.natural.prompt={spec.natural.prompt!r}: allowed is a text with {MARK} in it")
    prompt = MARK if embedded else spec.natural.prompt
    if spec.path is not None:
        rows = read_file(spec.path, spec.columns.names())
        tasks = to_tasks(f"workload.path={spec.path!r}", rows, spec.columns, prompt, spec.answer_after, grader)
        digest = hashlib.sha256(Path(spec.path).read_bytes()).hexdigest()[:12]
        source = f"file:{Path(spec.path).name}@{digest}#{fingerprint(tasks)}"
    elif embedded:
        tasks = _generate(spec.embedded, spec.max_tokens)
        source = f"embedded:arithmetic-{spec.embedded.split}@{fingerprint(tasks)}"
    else:
        rows = read_hub(spec.hub, spec.columns.names())
        tasks = to_tasks(f"workload.hub={spec.hub.id!r}", rows, spec.columns, prompt, spec.answer_after, grader)
        source = f"hub:{spec.hub.id}@{spec.hub.revision}#{fingerprint(tasks)}"
        spec.hub.check_rows(fingerprint(tasks))
    if spec.only is not None and (spec.path is not None or not embedded):
        tasks = longer.select(tasks, source, spec.only)
        source = f"{source}/{fingerprint(tasks)}"
    usual = spec.embedded.max_tokens if embedded else spec.natural.max_tokens
    return Workload(spec.name, spec.version, source, tasks, grader, spec.max_tokens or usual, n, seed)


def _trajectories(spec: TrajectoryConfig, embedded: bool, n: int, seed: int, tokenize: Tokenize | None) -> Workload:
    if tokenize is None:
        raise InputError(f"workload={spec.name}: cut by the length of prompts; allowed are models with a tokenizer")
    source, tasks = load_trajectories(spec, tokenize, embedded=embedded)
    longest = max(task.max_tokens or spec.natural.max_tokens for task in tasks)
    return Workload(spec.name, spec.version, source, tasks, "none", spec.max_tokens or longest, n, seed)


def _random(spec: RandomConfig, n: int, seed: int) -> Workload:
    digest = hashlib.sha256(msgspec.json.encode(spec)).hexdigest()[:12]
    tasks = random_tasks(spec)
    longest = max(task.max_tokens or 0 for task in tasks)
    return Workload(spec.name, spec.version, f"random@{digest}", tasks, "none", longest, n, seed)


def _convert(config: Mapping[str, Any], kind: type[_Config]) -> _Config:
    plain = OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config
    return convert(plain, kind, at="workload")


def _generate(spec: Embedded, max_tokens: int | None) -> list[Task]:
    made = spec.problems(spec.size)
    tasks = [Task(p.id, [{"role": "user", "content": p.question}], str(p.answer), solution=p.solution) for p in made]
    if spec.output_tokens is None:
        return tasks
    low, high = spec.output_tokens
    if low > high:
        raise InputError(f"workload.embedded.output_tokens={[low, high]}: allowed is the least, then the most")
    draw = random.Random(f"length-{spec.split}-{spec.seed}")
    lengths = [max_tokens or draw.randint(low, high) for _ in tasks]
    return [
        replace(task, expected=None, max_tokens=length, ignore_eos=True)
        for task, length in zip(tasks, lengths, strict=True)
    ]
