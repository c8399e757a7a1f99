"""A workload: which problems a run asks, in which order, and how answers are graded.

The same name means embedded problems for the embedded models, whose language is that of zoo/tasks/arithmetic.py, and
the data set on the hub for all others. Which it was is `data_source`, without which two results cannot be compared.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from omegaconf import OmegaConf

from tokenrouter.core import InputError
from zoo.tasks import answers
from zoo.tasks.arithmetic import problems
from zoo.tasks.hub import HubSet, read_hub
from zoo.tasks.lengths import RandomConfig, random_tasks
from zoo.tasks.rows import MARK, Columns, Task, fingerprint, read_file, to_tasks

_Positive = Annotated[int, Meta(ge=1)]
_Config = TypeVar("_Config", bound=msgspec.Struct)


class Natural(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How models of natural language are asked."""

    prompt: str
    max_tokens: _Positive


class Embedded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The set of generated problems: arguments of zoo.tasks.arithmetic.problems, and how long answers may be."""

    split: str
    size: _Positive
    seed: int
    min_steps: int
    max_steps: int
    max_tokens: _Positive


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
        for warm-up.
        """
        sample, place = divmod(i, len(self.problems))
        return self.problems[_order(len(self.problems), self.seed, sample)[place]], sample


@lru_cache(maxsize=16)
def _order(count: int, seed: int, sample: int) -> list[int]:
    order = list(range(count))
    random.Random(f"order-{seed}-{sample}").shuffle(order)
    return order


def load_workload(config: Mapping[str, Any], *, embedded: bool, n: int, seed: int) -> Workload:
    """The workload that `config` (conf/workload/*.yaml) describes, for `n` requests.

    `embedded`: the models are the embedded ones. They are asked the bare question, others in the words of
    `natural.prompt`. Raises InputError, naming field, value and what is allowed, before anything slow is done
    where that is possible.
    """
    if n < 1:
        raise InputError(f"load.num_requests={n}: allowed is >= 1")
    if config.get("kind") == "random":
        return _random(_convert(config, RandomConfig), n, seed)
    spec = _convert(config, WorkloadConfig)
    answers.check_kind(spec.grader)
    if MARK not in spec.natural.prompt:
        raise InputError(f"workload.natural.prompt={spec.natural.prompt!r}: allowed is a text with {MARK} in it")
    prompt = MARK if embedded else spec.natural.prompt
    if spec.path is not None:
        rows = read_file(spec.path, spec.columns)
        tasks = to_tasks(f"workload.path={spec.path!r}", rows, spec.columns, prompt, spec.answer_after)
        digest = hashlib.sha256(Path(spec.path).read_bytes()).hexdigest()[:12]
        source = f"file:{Path(spec.path).name}@{digest}"
    elif embedded:
        tasks = _generate(spec.embedded)
        source = f"embedded:arithmetic-{spec.embedded.split}@{fingerprint(tasks)}"
    else:
        rows = read_hub(spec.hub, spec.columns)
        tasks = to_tasks(f"workload.hub={spec.hub.id!r}", rows, spec.columns, prompt, spec.answer_after)
        source = f"hub:{spec.hub.id}@{spec.hub.revision}#{fingerprint(tasks)}"
        if spec.hub.fingerprint not in (None, fingerprint(tasks)):
            raise InputError(
                f"workload.hub.fingerprint={spec.hub.fingerprint!r}: the rows of {spec.hub.id!r} have changed; allowed "
                f"is null or theirs, {fingerprint(tasks)!r}"
            )
    usual = spec.embedded.max_tokens if embedded else spec.natural.max_tokens
    return Workload(spec.name, spec.version, source, tasks, spec.grader, spec.max_tokens or usual, n, seed)


def _random(spec: RandomConfig, n: int, seed: int) -> Workload:
    digest = hashlib.sha256(msgspec.json.encode(spec)).hexdigest()[:12]
    tasks = random_tasks(spec)
    longest = max(task.max_tokens or 0 for task in tasks)
    return Workload(spec.name, spec.version, f"random@{digest}", tasks, "boxed", longest, n, seed)  # nothing to grade


def _convert(config: Mapping[str, Any], kind: type[_Config]) -> _Config:
    plain = OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        named = re.search(r"field `(\w+)`", reason)  # missing or unknown
        keys = [*place.rstrip("`").split(".")[1:], *([named[1]] if named else [])]
        explained = "random" if kind is RandomConfig else "aime"
        value: Any = plain
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        raise InputError(
            f"{'.'.join(['workload', *keys])}={value!r}: {reason}; allowed is what conf/workload/{explained}.yaml "
            "explains"
        ) from None


def _generate(spec: Embedded) -> list[Task]:
    made = problems(spec.split, spec.size, spec.seed, min_steps=spec.min_steps, max_steps=spec.max_steps)
    return [Task(p.id, [{"role": "user", "content": p.question}], str(p.answer)) for p in made]
