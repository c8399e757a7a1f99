"""R2R's labels: where does the small model's proposal change the outcome? (arXiv 2505.21600, section on data labelling)

The LLM answers each problem greedily; the SLM is teacher-forced along that answer. Where its proposal is another token
(a mismatch), the LLM continues from the proposal to the end. The proposal diverges if that leads to another final
answer than the LLM's own, else it is neutral: another way of saying the same. The paper asks a large judge about the
sentences instead; here answers can be checked.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from tokenrouter.core import InputError
from tokenrouter.engine.base import Engine
from zoo.offline import Offline, Progress, continued, greedy, single, teacher_forced
from zoo.r2r.network import top_logits
from zoo.walk import Record

SAME, NEUTRAL, DIVERGENT = 0, 1, 2


class Rows(NamedTuple):
    """One row an output position of the LLM's answers: the SLM's `hidden` [N, H], `top_logits` [N, k] and proposed
    `token_ids` [N]; `kinds` [N] is SAME, NEUTRAL or DIVERGENT; `problems` [N] counts the answers."""

    hidden: torch.Tensor
    top_logits: torch.Tensor
    token_ids: torch.Tensor
    kinds: torch.Tensor
    problems: torch.Tensor


class Labeller:
    """`agree(answer, other)` says whether two decoded requests come to the same result."""

    def __init__(
        self, small: Engine, large: Engine, agree: Callable[[Record, Record], bool], *,
        num_logits: int, max_tokens: int, batch_size: int,
    ) -> None:
        self.small, self.agree = small, agree
        self.num_logits, self.max_tokens = num_logits, max_tokens
        self.vocab_size = min(small.info.vocab_size, large.info.vocab_size)
        self.eos = frozenset(large.info.eos_token_ids) | frozenset(small.info.eos_token_ids)
        self.alone = Offline(single("large"), [large], batch_size=batch_size)

    def label(self, prompts: Sequence[Sequence[int]], progress: Progress | None = None) -> Rows:
        """The rows of these problems. Answers that the LLM does not finish are left out."""
        answers = self.alone.decode(greedy(prompts, self.max_tokens), progress)
        answers = [answer for answer in answers if answer.finish_reason == "stop"]
        if not answers:
            raise InputError(f"problems: the large model finished none of {len(prompts)} in {self.max_tokens} tokens; "
                             "allowed are problems that it can answer, or a larger workload.max_tokens")
        seen = list(self._see(answers))
        branches = [
            (index, position, int(proposals[position]))
            for index, (answer, (_, _, proposals)) in enumerate(zip(answers, seen, strict=True))
            for position in (proposals != torch.tensor(answer.token_ids)).nonzero().flatten().tolist()
        ]
        kinds = [torch.zeros(len(answer.token_ids), dtype=torch.long) for answer in answers]
        starts = [(answers[i].prompt_ids, [*answers[i].token_ids[:position], token]) for i, position, token in branches]
        ends = continued(self.alone, starts, self.max_tokens, self.eos)
        for (index, position, _), branch in zip(branches, ends, strict=True):
            kinds[index][position] = NEUTRAL if self.agree(branch, answers[index]) else DIVERGENT
        hidden, top, proposals = (torch.cat(parts) for parts in zip(*seen, strict=True))
        counts = torch.tensor([len(answer.token_ids) for answer in answers])
        return Rows(hidden, top, proposals, torch.cat(kinds), torch.arange(len(answers)).repeat_interleave(counts))

    def _see(self, answers: Sequence[Record]) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """The SLM's hidden states, top logits and proposals along each answer."""
        for logits, hidden in teacher_forced(self.small, answers):
            top = top_logits(logits, self.num_logits)
            yield hidden.float().cpu(), top.cpu(), logits[:, : self.vocab_size].argmax(dim=-1).cpu()
