"""One request's way through an algorithm, one proposal at a time: who holds it, what is accepted, when it ends.

Whoever computes logits (zoo/reference.py one request at a time, zoo/offline.py in batches, baselines/ as other systems
do) tells `Walk.settle` what the router answered to them.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import torch

from tokenrouter.core import FinishReason, InputError, Request, SamplingParams
from tokenrouter.interface import Algorithm, BaseRouter, EntryContext, PeerReq, RequestView
from tokenrouter.proposals import Proposals, propose

_MAX_STALL = 64  # handoffs in a row that accept nothing: the routers send the request in circles


class Record(msgspec.Struct):
    """A request that was decoded, by whichever system. `token_models[t]` is the role that wrote token t.

    `margins[t]`: the least distance, over all that led to token t, of a logit from its runner-up, of a draw from the
    next token's share of probability, or of a router's score from its threshold; only the reference gives them.
    `handoffs` and `discarded` (proposals) are None where a system does not report them.
    """

    prompt_ids: list[int]
    sampling: SamplingParams
    params: dict[str, Any] = {}
    token_ids: list[int] = []
    token_models: list[int] = []
    finish_reason: str | None = None
    handoffs: int | None = None
    discarded: int | None = None
    margins: list[float] = []


class Walk:
    """`record` holds the prompt and how to sample; its other fields are filled on the way."""

    def __init__(
        self, algorithm: Algorithm, routers: Sequence[BaseRouter], record: Record, *, eos: Iterable[int], context: int
    ) -> None:
        record.sampling.check()
        self.limit = min(record.sampling.max_tokens, context - len(record.prompt_ids))
        if not record.prompt_ids or self.limit < 1:
            raise InputError(f"prompt: {len(record.prompt_ids)} tokens; allowed is 1 to {context - 1}")
        self.algorithm, self.routers, self.record, self.eos = algorithm, routers, record, frozenset(eos)
        self._params = algorithm.parse(record.params)
        self.role = algorithm.entry_role(EntryContext(record.prompt_ids, record.sampling.seed, self._params))
        self._requests: dict[int, Request] = {}  # one a role, as each subserver has its own
        self.extras: dict[int, Any] = {}  # by role, of the last handoff to it
        self._request_at(self.role).ids.extend(record.prompt_ids)
        self.request.known[self.role] = len(record.prompt_ids)
        record.token_ids, record.token_models, record.margins = [], [], []
        record.handoffs = record.discarded = self._stalled = 0

    @property
    def request(self) -> Request:
        """As the role that holds it sees it."""
        return self._requests[self.role]

    @property
    def router(self) -> BaseRouter:
        return self.routers[self.role]

    def view(self, proposal: int) -> RequestView:
        """What the holder's router sees of the request after a step."""
        return RequestView(self.request, proposal)

    @property
    def prefixes(self) -> list[list[int]]:
        """Ids after which the next step gives logits: one list, or with drafts to verify one for each and one more."""
        request = self.request
        return [request.span(0, len(request.ids) + drafted) for drafted in request.asked]

    def propose(self, logits: torch.Tensor, vocab_size: int) -> Proposals:
        """The proposal out of [R, V] logits, one row for each of `prefixes`."""
        proposals = propose([self.request], [self.router], logits, vocab_size, self.eos)
        self.reject(proposals.rejected[0])
        return proposals

    def reject(self, drafts: int) -> None:
        """So many of the drafts that were verified here were not accepted."""
        assert self.record.discarded is not None
        self.record.discarded += drafts

    def settle(self, view: RequestView, destination: int) -> list[int]:
        """Do what route answered; returns the tokens accepted here. `record.finish_reason` says whether it is over."""
        if destination == 0:
            if self.router.drafts:
                self.request.drafts.extend(view.proposal)
                return []
            return self._commit(view.proposal)
        view.destination = destination
        message = self.router.send(view)
        kept = view.proposal[: message.loc - len(self.request.ids)]
        accepted = self._commit(kept)
        assert self.record.handoffs is not None and self.record.discarded is not None
        self.record.discarded += 0 if message.drafts else len(view.proposal) - len(kept)
        if self.record.finish_reason is None:
            self.record.handoffs += 1
            self._stalled = 0 if accepted else self._stalled + 1
            if self._stalled > _MAX_STALL:
                raise RuntimeError(f"{self.algorithm.name}: {self._stalled} handoffs in a row accepted nothing")
            self._hand_over(message, self.algorithm.destination_role(self.role, destination))
        return accepted

    def _commit(self, tokens: list[int]) -> list[int]:
        """Accept tokens up to the one that ends the request. A proposal that was discarded never comes here."""
        for count, token in enumerate(tokens, 1):
            self.request.accept([token], [self.role])
            self.record.token_ids.append(token)
            self.record.token_models.append(self.role)
            self.record.finish_reason = self._finish_reason(token)
            if self.record.finish_reason:
                return tokens[:count]
        return tokens

    def _finish_reason(self, token: int) -> str | None:
        sampling = self.record.sampling
        if (token in self.eos and not sampling.ignore_eos) or token in sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.request.num_output >= self.limit else None

    def _hand_over(self, message: PeerReq, role: int) -> None:
        sender, receiver = self.request, self._request_at(role)
        sender.drafts = list(message.drafts)
        start = message.loc - len(message.token_ids)
        self.extras[role] = message.extra
        received = self.routers[role].receive(message, RequestView(receiver))
        if start < len(receiver.ids):  # what was held is said anew
            del receiver.ids[start:]
            receiver.kv_len, receiver.drafts = min(receiver.kv_len, start), []
        receiver.append(received)
        receiver.expect(list(message.drafts))
        receiver.authors = list(self.record.token_models)
        sender.known[role] = len(receiver.ids)
        receiver.known = list(sender.known)
        self.role = role

    def _request_at(self, role: int) -> Request:
        if role not in self._requests:
            self._requests[role] = Request(
                "0", 0, role, self.role, self.record.sampling, self._params, [], len(self.record.prompt_ids),
                [0] * len(self.routers),
            )
        return self._requests[role]
