"""CITER's labels: is the small model's token fine here? (official code: get_gt_first_iter.py, get_gt_next_iter.py)

Both models are teacher-forced along a right answer, and each position is a row. The label is 1 if the small model's
token is that of the right answer, else 0 if the large model's is. Where both have another, a rollout decides: 1 if the
small model, going on from its own token, comes to the right result. In later rounds the two models together decide
instead, as the router of the round before lets them.
"""
from __future__ import annotations

from typing import NamedTuple

import torch

from zoo.gold import Gold
from zoo.labels import Pair
from zoo.offline import Offline, continued, single, teacher_forced

SMALL_RIGHT, LARGE_RIGHT, BOTH_WRONG = 0, 1, 2


class Rows(NamedTuple):
    """One row an output position of the right answers: the SLM's `hidden` [N, H] and proposal `token_ids` [N], and the
    right token `gold` [N]; `kinds` [N] is SMALL_RIGHT, LARGE_RIGHT or BOTH_WRONG; `labels` [N] is 1.0 where the
    proposal is fine; `problems` [N] counts the problems."""

    hidden: torch.Tensor
    token_ids: torch.Tensor
    gold: torch.Tensor
    kinds: torch.Tensor
    labels: torch.Tensor
    problems: torch.Tensor


class Labels(NamedTuple):
    """New `labels` [n] for the rows of kind BOTH_WRONG, in their order."""

    labels: torch.Tensor
    problems: torch.Tensor


def kinds_of(small: torch.Tensor, large: torch.Tensor, gold: torch.Tensor) -> torch.Tensor:
    """[T] tokens of the small model, of the large one, and right ones -> [T] kinds."""
    wrong = torch.where(large == gold, LARGE_RIGHT, BOTH_WRONG)
    return torch.where(small == gold, SMALL_RIGHT, wrong)


class Labeller:
    def __init__(self, pair: Pair) -> None:
        self.pair, self.gold = pair, Gold(pair)
        self.alone = Offline(single("small"), [pair.small], batch_size=pair.options.decode_batch)
        self.vocab_size = min(engine.info.vocab_size for engine in (pair.small, pair.large))
        self.eos = frozenset(pair.small.info.eos_token_ids) | frozenset(pair.large.info.eos_token_ids)

    def label(self, part: slice) -> Rows:
        """The rows of a slice of the problems; those without a right answer are left out."""
        golds = self.gold(part)
        answers = list(golds.values())
        forced = teacher_forced(self.pair.small, answers)
        seen = [(hidden.float().cpu(), self._proposals(logits)) for logits, hidden in forced]
        others = [self._proposals(logits) for logits, _ in teacher_forced(self.pair.large, answers)]
        gold = [torch.tensor(answer.token_ids) for answer in answers]
        kinds = torch.cat([kinds_of(s, o, g) for (_, s), o, g in zip(seen, others, gold, strict=True)])
        counts = torch.tensor([len(answer.token_ids) for answer in answers])
        rows = Rows(
            torch.cat([hidden for hidden, _ in seen]), torch.cat([small for _, small in seen]), torch.cat(gold), kinds,
            (kinds == SMALL_RIGHT).float(), torch.tensor(list(golds)).repeat_interleave(counts),
        )
        rows.labels[kinds == BOTH_WRONG] = self._rollouts(rows, part, self.alone)
        return rows

    def relabel(self, rows: Rows, part: slice, routed: Offline) -> Labels:
        """Of a slice of the problems, whose rows are among `rows`, the labels that rollouts under a router give."""
        here = (rows.problems >= part.start) & (rows.problems < part.stop)
        own = Rows(*(column[here] for column in rows))._replace(problems=rows.problems[here] - part.start)
        return Labels(self._rollouts(own, part, routed), own.problems[own.kinds == BOTH_WRONG])

    def _rollouts(self, rows: Rows, part: slice, offline: Offline) -> torch.Tensor:
        """[n] for the rows of kind BOTH_WRONG: 1.0 where going on from the proposal leads to the right result."""
        pair, starts, tasks = self.pair, [], []
        for place in rows.problems.unique().tolist():
            own = rows.problems == place
            tokens, gold = rows.token_ids[own].tolist(), rows.gold[own].tolist()
            for position in (rows.kinds[own] == BOTH_WRONG).nonzero().flatten().tolist():
                starts.append((pair.prompts[part][place], [*gold[:position], tokens[position]]))
                tasks.append(pair.tasks[part][place])
        ends = continued(offline, starts, pair.workload.max_tokens, self.eos)
        return torch.tensor([pair.right(end, task) for end, task in zip(ends, tasks, strict=True)], dtype=torch.float)

    def _proposals(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[:, : self.vocab_size].argmax(dim=-1).cpu()
