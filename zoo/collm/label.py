"""What Co-LLM learns from: right answers, and how likely each of their tokens is to either model."""
from __future__ import annotations

from typing import NamedTuple

import torch

from zoo.gold import Gold
from zoo.labels import Pair
from zoo.offline import teacher_forced


class Rows(NamedTuple):
    """One row an output position of the right answers: their `token_ids` [N]; the small model's `hidden` [N, H]; log
    probabilities of the token, `small` [N] and `large` [N]; `weak` [N] is 1.0 where only the large model's likeliest
    token is the right one; `problems` [N] counts the problems."""

    token_ids: torch.Tensor
    hidden: torch.Tensor
    small: torch.Tensor
    large: torch.Tensor
    weak: torch.Tensor
    problems: torch.Tensor


class Labeller:
    def __init__(self, pair: Pair) -> None:
        self.pair, self.gold = pair, Gold(pair)
        self.vocab_size = min(engine.info.vocab_size for engine in (pair.small, pair.large))

    def label(self, part: slice) -> Rows:
        """The rows of a slice of the problems; those without a right answer are left out."""
        golds = self.gold(part)
        answers = list(golds.values())
        parts = []
        forced = [teacher_forced(engine, answers) for engine in (self.pair.small, self.pair.large)]
        for place, answer, (small, hidden), (large, _) in zip(golds, answers, *forced, strict=True):
            gold = torch.tensor(answer.token_ids)
            p_small, p_large = (self._log_probs(logits) for logits in (small, large))
            weak = (p_large.argmax(dim=-1) == gold) & (p_small.argmax(dim=-1) != gold)
            of_gold = (p.gather(1, gold[:, None]).squeeze(1) for p in (p_small, p_large))
            parts.append(Rows(gold, hidden.float().cpu(), *of_gold, weak.float(), torch.full_like(gold, place)))
        return Rows(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def _log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """[T, V] over the ids that both models have."""
        return logits[:, : self.vocab_size].float().log_softmax(dim=-1).cpu()
