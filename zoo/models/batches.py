"""What the embedded models are trained on: batches of whole problems, and drills of single equations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from zoo.models.tokenizer import completion, prompt
from zoo.tasks.arithmetic import problems

IGNORE = -100  # the label of a position that has no loss
POOL = 512  # problems drawn at once, and sorted by length into batches with little padding
DRILL_ROW = 20  # equations in a row of a drill

Batch = tuple[Tensor, Tensor]
"""Token ids and labels, both int64 [rows, length]; label t is the id at t, or IGNORE."""


def problem_batches(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Batch]:
    """Endless batches of whole problems; the loss is on the worked answer."""
    rng = random.Random(seed)
    pool = seed * 1_000_000
    while True:
        pool += 1
        drawn = problems("train", POOL, pool)
        asked = tokenizer([prompt(tokenizer, p.question) for p in drawn], add_special_tokens=False)["input_ids"]
        worked = tokenizer([completion(p) for p in drawn], add_special_tokens=False)["input_ids"]
        rows = sorted(
            ((q + a, [IGNORE] * len(q) + a) for q, a in zip(asked, worked, strict=True)), key=lambda row: len(row[0])
        )
        batches: list[list[tuple[list[int], list[int]]]] = [[]]
        for row in rows:
            if len(row[0]) * (len(batches[-1]) + 1) > tokens:
                batches.append([])
            batches[-1].append(row)
        rng.shuffle(batches)
        yield from map(_pad, batches)


@dataclass(frozen=True)
class Equation:
    """As in a worked answer, `: 177 + 331 =` and ` 508.`, in token ids."""

    text: str
    question: list[int]
    result: list[int]

    def __len__(self) -> int:
        return len(self.question) + len(self.result)


class Drills:
    """Endless batches of single equations in random order; the loss is on the results."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int, again: int = 0) -> None:
        self.tokenizer, self.tokens, self.again = tokenizer, tokens, again
        self.rng = random.Random(seed)
        self.pool = seed * 1_000_000 + 500_000
        self.missed: list[str] = []
        self.rows: list[list[Equation]] = []
        self.drilled: list[list[Equation]] = []  # the rows of the last batch

    def next(self) -> Batch:
        while len(self.rows) < (size := self._batch_size()):
            self._refill()
        self.drilled, self.rows = self.rows[:size], self.rows[size:]
        return _pad(
            [
                (
                    [t for e in row for t in e.question + e.result],
                    [t for e in row for t in [IGNORE] * len(e.question) + e.result],
                )
                for row in self.drilled
            ]
        )

    def mark(self, wrong: Tensor) -> None:
        """Takes note of what was wrong in the last batch: bool [rows, length], of its labels."""
        for row, flags in zip(self.drilled, wrong.tolist(), strict=True):
            start = 0
            for equation in row:
                end = start + len(equation)
                if any(flags[start:end]):
                    self.missed += self.again * [equation.text]
                start = end

    def _batch_size(self) -> int:
        return max(1, self.tokens // max((sum(map(len, row)) for row in self.rows), default=1))

    def _refill(self) -> None:
        self.pool += 1
        texts = [e for p in problems("train", POOL, self.pool) for e in p.equations] + self.missed
        self.missed = []
        self.rng.shuffle(texts)
        # An equation that goes on from the one before would make a pair, perhaps one of another split.
        kept = texts[:1]
        for text in texts[1:]:
            if text.split()[0] != kept[-1].split()[-1]:
                kept.append(text)
        parts = [part for e in kept for part in (f": {e[: e.index('=') + 1]}", f"{e[e.index('=') + 1 :]}.\n")]
        ids = self.tokenizer(parts, add_special_tokens=False)["input_ids"]
        equations = [Equation(*e) for e in zip(kept, ids[::2], ids[1::2], strict=True)]
        self.rows += [equations[i : i + DRILL_ROW] for i in range(0, len(kept) - DRILL_ROW + 1, DRILL_ROW)]


def _pad(rows: list[tuple[list[int], list[int]]]) -> Batch:
    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    labels = torch.full((len(rows), length), IGNORE)
    for i, (row, label) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, : len(row)] = torch.tensor(label)
    return ids, labels
