"""Prompts without meaning: token ids and lengths drawn at random, to measure systems with."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tokenrouter.core import InputError
from zoo.tasks.rows import Task

_Positive = Annotated[int, Meta(ge=1)]


class RandomConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What conf/workload/random.yaml explains, field by field."""

    name: str
    version: int
    kind: Literal["random"]
    input_tokens: tuple[_Positive, _Positive]
    output_tokens: tuple[_Positive, _Positive]
    vocab_size: _Positive
    size: _Positive
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    max_tokens: _Positive | None = None


def random_tasks(spec: RandomConfig) -> list[Task]:
    """`size` prompts; each depends on the seed and its own number alone. InputError for a range that is none."""
    for name in ("input_tokens", "output_tokens"):
        low, high = getattr(spec, name)
        if low > high:
            raise InputError(f"workload.{name}={[low, high]}: allowed is the least and the most, in this order")
    return [_task(spec, number) for number in range(spec.size)]


def _task(spec: RandomConfig, number: int) -> Task:
    draw = random.Random(f"random-{spec.seed}-{number}")
    length, output = draw.randint(*spec.input_tokens), draw.randint(*spec.output_tokens)
    ids = draw.choices(range(spec.vocab_size), k=length)
    return Task(f"random-{number}", [], None, ids, spec.max_tokens or output)
