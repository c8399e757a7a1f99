"""Routing by whole steps, as GlimpRouter does: a glimpse at a step's first token says which model writes the step."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from tokenrouter.cluster.models import load_tokenizer, locate
from tokenrouter.core import InputError
from tokenrouter.interface import BaseRouter, Param, RequestView, StepResult
from zoo.entropy.router import normalised_entropy
from zoo.threshold import Tensors, ThresholdRouter

TOP = 20  # tokens over which the glimpse's entropy is taken

# Declared once for both models: at `always` the large one does not return.
PARAMS = (Param("threshold", 0.334, 0.0, 1.0, f"entropy of a step's first token over its {TOP} likeliest and ln {TOP}, "
                "from which on the large model writes the step", sends="above"),)


class Steps(BaseRouter):
    """Where steps begin and end: a function of accepted tokens.

    A step ends with a token that has `delimiter` in its text, or after `max_step` tokens. After a token that has
    `answer` in its text, where that is given, all is the large model's. `tokenizer`: folder or hub id.
    """

    delimiter: str = "\n\n"
    answer: str | None = None
    max_step: int = 512
    tokenizer: str = ""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        if isinstance(self.max_step, bool) or not isinstance(self.max_step, int) or self.max_step < 1:
            raise InputError(f"max_step={self.max_step!r}: allowed is a whole number of tokens >= 1")
        if not isinstance(self.tokenizer, str) or not self.tokenizer:
            raise InputError(f"tokenizer={self.tokenizer!r}: allowed is a folder or hub id")
        texts = _texts(self.tokenizer)
        self._ends = _having("delimiter", self.delimiter, texts)
        self._answers = _having("answer", self.answer, texts) if self.answer is not None else frozenset()

    def written(self, view: RequestView) -> int:
        """Accepted tokens of the step that the proposal belongs to: 0 if it is the first."""
        ids, count = view.output_ids, view.num_accepted
        written = next((i for i in range(count) if ids[count - 1 - i] in self._ends), count)
        return written % self.max_step

    def answering(self, view: RequestView) -> bool:
        return bool(self._answers) and not self._answers.isdisjoint(view.output_ids[: view.num_accepted])


class GlimpSmall(Steps, ThresholdRouter):
    """Hands a step over where the glimpse is uncertain: its first token is discarded. Else writes it to its end."""

    params = PARAMS
    leaves = ">="
    top_logits = TOP

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        likeliest = tensors.logits.topk(min(TOP, tensors.logits.shape[-1])).values
        return normalised_entropy(likeliest)

    def scores(self, result: StepResult) -> tuple[torch.Tensor, torch.Tensor]:
        """Decided only at a step's first token: elsewhere the score is on the far side of any threshold."""
        score, threshold = super().scores(result)
        answering = [self.answering(view) for view in result.requests]
        within = [self.written(view) > 0 for view in result.requests]
        leave, stay = (torch.tensor(rows, device=score.device) for rows in (answering, within))
        leave &= threshold != math.inf  # `never` is the small model alone, answer and all
        return score, threshold.masked_fill(stay, math.inf).masked_fill(leave, -math.inf)


class GlimpLarge(Steps):
    """Writes a step to its end, and the answer to its end."""

    params = PARAMS
    handoff = "keep"
    top_logits = 0
    peers = 1

    def route(self, result: StepResult) -> torch.Tensor:
        thresholds = self.values("threshold", result).tolist()
        answers = [int(self._returns(view, token, threshold)) for view, token, threshold in zip(
            result.requests, result.next_token_ids.tolist(), thresholds, strict=True)]
        return torch.tensor(answers, device=result.next_token_ids.device)

    def _returns(self, view: RequestView, token: int, threshold: float) -> bool:
        if threshold == -math.inf or token in self._answers or self.answering(view):
            return False
        return token in self._ends or self.written(view) + 1 == self.max_step


@lru_cache(maxsize=4)  # both models' routers ask for the same, and those that are built to be checked
def _texts(tokenizer: str) -> list[str]:
    """The text of each token."""
    loaded = load_tokenizer("tokenizer", locate("tokenizer", tokenizer))
    return list(loaded.batch_decode([[token] for token in range(len(loaded))]))


def _having(name: str, text: Any, texts: Sequence[str]) -> frozenset[int]:
    if not isinstance(text, str) or not text:
        raise InputError(f"{name}={text!r}: allowed is a text of one character or more")
    found = frozenset(token for token, own in enumerate(texts) if text in own)
    if not found:
        raise InputError(f"{name}={text!r}: allowed is a text that a token of the vocabulary has")
    return found
