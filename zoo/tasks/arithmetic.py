"""Generated word problems: integers 0-999, worked steps, an answer that can be checked.

Only the digits of each step's result are hard; everything else copies the question or is fixed text. A problem is a
chain of equations in which each starts from the result of the one before. Splits are disjoint in their numbers: each
PAIR of consecutive equations belongs to one split, by a hash, and all pairs of a problem belong to the problem's own.
So no chain of two or more equations occurs in two splits, not even as a part of a longer one.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from tokenrouter.core import InputError
from zoo.tasks.wordings import (
    BEGIN,
    CONCLUDE,
    HELDOUT,
    ITEMS,
    NAMES,
    REASON,
    RESTATE,
    TRAINED,
    Question,
)

SPLITS = ("train", "router", "calibration", "test")
WORDINGS = {"trained": TRAINED, "heldout": HELDOUT}

# Pairs fall into ten classes by their hash. All pairs of a problem are of one class, also in `train`, which has seven:
# what a class leaves to choose from shapes the problems, and this way it shapes those of all splits alike.
_CLASSES = {"train": range(7), "router": range(7, 8), "calibration": range(8, 9), "test": range(9, 10)}
_OPERATORS = "++--**//"


@dataclass(frozen=True)
class Problem:
    """A word problem. `solution` is the worked answer, ending in `\\boxed{answer}`; `equations` are its steps."""

    id: str
    question: str
    solution: str
    answer: int
    equations: tuple[str, ...]


class Generated(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A set of problems, as conf/workload/ has it under `embedded`: the arguments of `problems`."""

    split: str
    size: Annotated[int, Meta(ge=1)]
    seed: int
    min_steps: int
    max_steps: int

    def problems(self, count: int) -> list[Problem]:
        """The first `count` of them. InputError in the words of the configuration."""
        try:
            return problems(self.split, count, self.seed, min_steps=self.min_steps, max_steps=self.max_steps)
        except InputError as error:
            raise InputError(f"workload.embedded.{error}") from None


@dataclass(frozen=True)
class _Step:
    x: int
    operator: str
    b: int
    y: int

    def __str__(self) -> str:
        return f"{self.x} {self.operator} {self.b} = {self.y}"


def problems(
    split: str, n: int, seed: int = 0, *, wordings: str = "trained", min_steps: int = 2, max_steps: int = 6
) -> list[Problem]:
    """The first `n` problems of a split's stream.

    Problem i is a function of (split, seed, i, min_steps, max_steps) and the wordings, whatever `n` is; its numbers are
    the same in all wordings. All numbers in it, the answer included, are in 0..999.

    Raises InputError for an unknown split or wordings, a negative n, or steps that are not 2 <= min_steps <= max_steps
    (a single equation has no pair, hence no split).
    """
    if split not in SPLITS:
        raise InputError(f"split={split!r}: allowed is one of {', '.join(SPLITS)}")
    if wordings not in WORDINGS:
        raise InputError(f"wordings={wordings!r}: allowed is one of {', '.join(WORDINGS)}")
    if n < 0:
        raise InputError(f"n={n}: allowed is 0 or more")
    if min_steps < 2:
        raise InputError(f"min_steps={min_steps}: allowed is 2 or more")
    if max_steps < min_steps:
        raise InputError(f"max_steps={max_steps}: allowed is min_steps ({min_steps}) or more")
    suffix = "" if wordings == "trained" else f"-{wordings}"
    made = []
    for index in range(n):
        key = f"{split}-{seed}-{min_steps}-{max_steps}-{index}"
        chain = _chain(random.Random(f"numbers-{key}"), split, min_steps, max_steps)
        words = random.Random(f"{wordings}-{key}")
        made.append(_write(f"{key}{suffix}", chain, words, WORDINGS[wordings]))
    return made


def split_of(first: str, second: str) -> str:
    """The split that owns the pair of consecutive equations `first`, `second`, spelled `177 + 331 = 508`."""
    owner = _class_of(first, second)
    return next(split for split in SPLITS if owner in _CLASSES[split])


def _class_of(first: str, second: str) -> int:
    digest = hashlib.blake2b(f"{first}; {second}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 10


def _chain(rng: random.Random, split: str, min_steps: int, max_steps: int) -> list[_Step]:
    length = rng.randint(min_steps, max_steps)
    owner = rng.choice(_CLASSES[split])
    x = rng.randint(5, 400)
    chain: list[_Step] = []
    while len(chain) < length:
        # Every x has hundreds of possible additions or subtractions, so that some fit even one class in ten.
        step = _draw(rng, x)
        if step is not None and (not chain or _class_of(str(chain[-1]), str(step)) == owner):
            chain.append(step)
            x = step.y
    return chain


def _draw(rng: random.Random, x: int) -> _Step | None:
    """A step from x whose result is an integer in 2..999, or None where the drawn operator allows none."""
    operator = rng.choice(_OPERATORS)
    if operator == "+":
        most = min(999 - x, 600)
        if most < 5:
            return None
        b = rng.randint(5, most)
        return _Step(x, operator, b, x + b)
    if operator == "-":
        if x < 20:
            return None
        b = rng.randint(5, x - 2)
        return _Step(x, operator, b, x - b)
    if operator == "*":
        most = min(9, 999 // x)
        if most < 2:
            return None
        b = rng.randint(2, most)
        return _Step(x, operator, b, x * b)
    divisors = [d for d in range(2, 10) if x % d == 0 and x // d >= 4]
    if not divisors:
        return None
    b = rng.choice(divisors)
    return _Step(x, operator, b, x // b)


def _write(id: str, chain: list[_Step], rng: random.Random, wordings: Question) -> Problem:
    start, answer = chain[0].x, chain[-1].y
    about = {"n": rng.choice(NAMES), "i": rng.choice(ITEMS)}
    asked = [rng.choice(wordings.opening).format(a=start, **about)]
    worked = [rng.choice(BEGIN).format(a=start, **about)]
    for number, step in enumerate(chain, 1):
        asked.append(rng.choice(wordings.steps[step.operator]).format(b=step.b, **about))
        reason = rng.choice(REASON[step.operator]).format(b=step.b, **about)
        restated = rng.choice(RESTATE).format(y=step.y, **about)
        worked.append(f"Step {number}: {reason}: {step}. {restated}")
    asked.append(rng.choice(wordings.ask).format(**about))
    worked.append(f"{rng.choice(CONCLUDE)} \\boxed{{{answer}}}.")
    return Problem(id, " ".join(asked), "\n".join(worked), answer, tuple(str(step) for step in chain))
