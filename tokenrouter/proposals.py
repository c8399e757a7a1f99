"""From the logits of a step to one proposal for each request, and the row of them that its router gets to see."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import torch

from tokenrouter.core import Request
from tokenrouter.interface import BaseRouter, RequestView
from tokenrouter.sampling import draw_of, sample


class Proposals(NamedTuple):
    """`rows`: which of the step's rows each request's last proposed token comes from; `tokens` [B] these tokens.
    `rejected[i]`: drafts that request i's model did not accept."""

    views: list[RequestView]
    rows: list[int]
    tokens: torch.Tensor
    rejected: list[int]


class _Unread:
    """Sampled tokens, read from the device when the first of them is asked for."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens
        self._read: list[int] | None = None

    def proposal(self, row: int) -> list[int]:
        if self._read is None:
            self._read = self._tokens.tolist()
        return [self._read[row]]


def propose(requests: Sequence[Request], routers: Sequence[BaseRouter], logits: torch.Tensor, vocab_size: int,
            eos_token_ids: Collection[int]) -> Proposals:
    """`logits` [R, V]: each request's `num_logits` rows, in order; `routers[i]`: request i's.

    A request that came with drafts has them verified, and none any more: its proposal is what was accepted of them and
    one token more.
    """
    draws = [draw_of(request, eos_token_ids, drafted) for request in requests for drafted in request.asked]
    sampled = sample(logits, draws, vocab_size)
    counts = [request.num_logits for request in requests]
    if len(draws) == len(requests):
        unread = _Unread(sampled)
        views = [RequestView(request, partial(unread.proposal, row), draw)
                 for row, (request, draw) in enumerate(zip(requests, draws, strict=True))]
        return Proposals(views, list(range(len(requests))), sampled, [0] * len(requests))
    views, rows, rejected = [], [], []
    own = sampled.tolist()
    for request, router, count, end in zip(requests, routers, counts, accumulate(counts), strict=True):
        part = slice(end - count, end)
        proposal = own[part]
        if count > 1:
            drafts = request.drafts
            proposal = router.verify(RequestView(request), proposal, logits[part, :vocab_size], draws[part])
            if not proposal or proposal[:-1] != drafts[: len(proposal) - 1]:
                raise ValueError(f"{type(router).__name__}.verify answered {proposal} for the drafts {drafts}: allowed "
                                 "are the first of these and one token more")
            request.expect([])
        rejected.append(count - len(proposal))
        rows.append(part.start + len(proposal) - 1)
        views.append(RequestView(request, proposal, draws[rows[-1]]))
    last = torch.tensor([view.proposal[-1] for view in views], device=logits.device)
    return Proposals(views, rows, last, rejected)
