"""A request on its way through an algorithm, and what its client gets to hear of it."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from baselines.calls import Calls
from baselines.host import Answer, Ask
from tokenrouter.core import FinishReason, SamplingParams
from tokenrouter.interface import Algorithm, BaseRouter
from zoo.walk import Record, Walk


class _Event(msgspec.Struct, array_like=True, tag=True):
    rid: str


class Tokens(_Event):
    """Accepted tokens from output position `position` on, all by one role."""

    position: int
    token_ids: list[int]
    role: int


class Ended(_Event):
    reason: FinishReason
    num_output: int
    handoffs: int
    discarded: int
    error: str | None = None


class Course:
    """What becomes of proposals is in zoo/walk.py; here is what each model has been told.

    `stats`: one a role; they count the routed steps.
    """

    def __init__(
        self, rid: str, prompt_ids: list[int], sampling: SamplingParams, params: dict[str, Any], algorithm: Algorithm,
        routers: Sequence[BaseRouter], stats: Sequence[Calls], *, eos: Iterable[int], context: int,
    ) -> None:
        self.rid, self._stats = rid, stats
        self.walk = Walk(algorithm, routers, Record(prompt_ids, sampling, params), eos=eos, context=context)
        self._told = [0] * len(routers)

    @property
    def role(self) -> int:
        return self.walk.role

    @property
    def over(self) -> bool:
        return self.walk.record.finish_reason is not None

    @property
    def most_tokens(self) -> int:
        """Prompt and output at most."""
        return len(self.walk.record.prompt_ids) + self.walk.limit

    def ask(self, *, all_ids: bool) -> Ask:
        """For the next step at the role that holds the request: what that role lacks, or everything."""
        return self._ask(self.walk.role, self.walk.request.ids, all_ids)

    def tell(self, role: int) -> Ask:
        """What `role` lacks, for it to take in without a step."""
        record = self.walk.record
        return self._ask(role, [*record.prompt_ids, *record.token_ids], False)

    def settle(self, answer: Answer) -> list[_Event]:
        """Do what the router answered; what is to be announced."""
        walk, record = self.walk, self.walk.record
        role, position = walk.role, len(record.token_ids)
        accepted = walk.settle(walk.view(answer.token), answer.destination)
        target = role
        if answer.destination:
            target = walk.algorithm.destination_role(role, answer.destination)
        self._stats[role].transition(walk.algorithm.name, len(walk.routers), target, len(accepted))
        events: list[_Event] = [Tokens(self.rid, position, accepted, role)] if accepted else []
        if self.over:
            events.append(self.ended(FinishReason(record.finish_reason)))
        return events

    def ended(self, reason: FinishReason, error: str | None = None) -> Ended:
        record = self.walk.record
        return Ended(self.rid, reason, len(record.token_ids), record.handoffs or 0, record.discarded or 0, error)

    def _ask(self, role: int, ids: list[int], all_ids: bool) -> Ask:
        record = self.walk.record
        prompt_len = len(record.prompt_ids)
        start = 0 if all_ids else self._told[role]
        self._told[role] = len(ids)
        authors = record.token_models[max(0, start - prompt_len) :]
        return Ask(self.rid, start, ids[start:], authors, prompt_len, record.sampling, self.walk.request.params,
                   self.walk.extras.get(role))


Event = Tokens | Ended
