"""One model and its router, for executors that hold the requests themselves."""
from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import torch

from tokenrouter.core import Request, SamplingParams
from tokenrouter.engine.base import Engine, EngineOutput, ModelInfo, Row
from tokenrouter.engine.routers import context_of, set_up
from tokenrouter.interface import BaseRouter, LogitsOutput, ModelContext, PeerReq, RequestView, StepResult
from tokenrouter.proposals import propose

PARTS = ("prefix matching", "page allocation", "inference", "sampling and routing", "release and prefix cache")


class Ask(msgspec.Struct, array_like=True):
    """A step for one request. `ids`: prompt and accepted tokens from `start` on, before which the host has all."""

    rid: str
    start: int
    ids: list[int]
    authors: list[int]  # of the tokens among `ids`
    prompt_len: int
    sampling: SamplingParams
    params: dict[str, Any]
    extra: Any = None  # the algorithm's own, of the last handoff to this model


class Answer(msgspec.Struct, array_like=True):
    """The proposal, and what the router answers to it. `logprobs` [V] where the style carries them."""

    token: int
    destination: int
    logprobs: list[float] | None = None


class Reply(msgspec.Struct, array_like=True):
    """Answers in the order of the asks. `tokens`: computed for them, recomputed prefixes included. `parts`: seconds
    that went into each part of it (PARTS)."""

    answers: list[Answer]
    tokens: int
    parts: dict[str, float]


def joined(replies: Sequence[Reply]) -> Reply:
    return Reply([answer for reply in replies for answer in reply.answers], sum(reply.tokens for reply in replies),
                 {part: sum(reply.parts[part] for reply in replies) for part in PARTS})


class Steps(Protocol):
    """What an executor asks of a model, wherever that is."""

    info: ModelInfo
    capacity: int

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """What all models must agree on: ids from `vocab_size` on, which some lack, are never drawn."""

    def step(self, asks: Sequence[Ask]) -> Reply: ...

    def append(self, asks: Sequence[Ask]) -> None:
        """Take ids in without a step."""

    def end(self, rids: Sequence[str]) -> None:
        """Forget requests, of which it may have heard or not."""


class Routing:
    """The requests at one model: what has come of them, how their proposals are drawn, and what its router, which is
    set up, answers.

    It never asks where logits come from.
    """

    def __init__(self, router: BaseRouter, model: ModelContext) -> None:
        self.router = router
        self.vocab_size, self._eos = model.vocab_size, frozenset(model.eos_token_ids)
        self._requests: dict[str, Request] = {}

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """As Steps.start."""
        self.vocab_size, self._eos = vocab_size, frozenset(eos_token_ids)

    def take(self, ask: Ask) -> Request:
        request = self._requests.get(ask.rid)
        if request is None:
            role, roles = self.router.role, len(self.router.roles)
            request = self._requests[ask.rid] = Request(
                ask.rid, 0, role, role, ask.sampling, ask.params, [], ask.prompt_len, [0] * roles)
        request.ids[ask.start :] = ask.ids
        request.authors[max(0, ask.start - ask.prompt_len) :] = ask.authors
        if ask.extra is not None:
            self.router.receive(PeerReq(ask.rid, [], len(request.ids), extra=ask.extra), RequestView(request))
        return request

    def answer(
        self, requests: Sequence[Request], logits: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[list[int], list[int]]:
        """[B, V] raw logits and [B, H] hidden states -> B proposals, and the router's destinations for them."""
        router = self.router
        proposals = propose(requests, [router] * len(requests), logits, self.vocab_size, self._eos)
        seen = hidden if "hidden_states" in router.needs else None
        result = StepResult(proposals.tokens, LogitsOutput(logits, seen), proposals.views, self.vocab_size)
        return proposals.tokens.tolist(), router.route(result).tolist()

    def request(self, rid: str) -> Request:
        return self._requests[rid]

    def forget(self, rid: str) -> None:
        self._requests.pop(rid, None)


@dataclass
class _Begun:
    """A request whose step is under way: what has been computed for it so far, and where its time went."""

    request: Request
    tokens: int = 0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))


class Host:
    """`Steps` in this process. Without `keep`, a request's KV is dropped after each step."""

    def __init__(
        self, engine: Engine, router: BaseRouter, *, keep: bool, logprobs: bool, chunk_tokens: int
    ) -> None:
        self.info, self.capacity = engine.info, engine.capacity().total
        self._engine, self._keep, self._logprobs = engine, keep, logprobs
        self._chunk = chunk_tokens
        self._begun: dict[str, _Begun] = {}
        self._open: dict[str, None] = {}  # what has KV, the first opened first
        set_up(router, engine)
        self._routing = Routing(router, context_of(engine))

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._routing.start(vocab_size, eos_token_ids)

    def step(self, asks: Sequence[Ask]) -> Reply:
        for ask in asks:
            self.begin(ask)
        made: dict[str, Reply] = {}
        while len(made) < len(asks):
            made |= self.turn()
        return joined([made[ask.rid] for ask in asks])

    def begin(self, ask: Ask) -> None:
        self._begun[ask.rid] = _Begun(self._routing.take(ask))

    @torch.inference_mode()
    def turn(self) -> dict[str, Reply]:
        """One pass for all that have begun; the replies of those of which nothing is missing then.

        Of one that lacks more than a chunk, a chunk; there is one such row a pass, so that nobody waits behind a whole
        prompt. Who finds no room waits for the others. RuntimeError if there is none for the first alone.
        """
        rows = self._rows()
        if not rows:  # together they hold all of it: all but the first begin anew
            for rid in list(self._begun)[1:]:
                self._drop(rid)
            rows = self._rows()
        if not rows:
            raise RuntimeError(f"{self.info.name}: a KV pool of {self.capacity} tokens is too small for a request")
        return self._run(rows)

    def give_up(self) -> None:
        """After a failure: no step is under way any more."""
        self._begun.clear()

    def append(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._routing.take(ask)

    def end(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._begun.pop(rid, None)
            self._drop(rid)
            self._routing.forget(rid)

    def _rows(self) -> list[Row]:
        """Of the next pass, for which there is room."""
        rows: list[Row] = []
        for rid, begun in self._begun.items():
            ids, done = begun.request.ids, self._opened(begun)
            whole = len(ids) - done <= self._chunk
            if not whole and any(row.num_logits == 0 for row in rows):
                continue
            row = Row(rid, ids[done : done + self._chunk], int(whole))
            with self._timed("page allocation", [begun]):
                if self._room(row):
                    rows.append(row)
        return rows

    def _opened(self, begun: _Begun) -> int:
        """How much of it is in KV, with what the prefix cache has: less than all, so that there is a last position."""
        request, engine = begun.request, self._engine
        if request.rid not in self._open:
            with self._timed("prefix matching", [begun]):
                engine.open(request.rid, request.ids)
            self._open[request.rid] = None
        elif engine.kv_len(request.rid) == len(request.ids):  # it is back with nothing new: the last logits once more
            engine.truncate(request.rid, len(request.ids) - 1)
        return engine.kv_len(request.rid)

    def _room(self, row: Row) -> bool:
        """Whether there is some, if need be that of requests that no step is under way for."""
        while not self._engine.allocate(row.rid, len(row.token_ids)):
            # The one that was opened last: requests come by turns, and the first would be the next that is needed.
            idle = next((rid for rid in reversed(self._open) if rid not in self._begun), None)
            if idle is None:
                return False
            self._drop(idle)
        return True

    def _run(self, rows: Sequence[Row]) -> dict[str, Reply]:
        taking = [self._begun[row.rid] for row in rows]
        for begun, row in zip(taking, rows, strict=True):
            begun.tokens += len(row.token_ids)
        complete = [self._begun[row.rid] for row in rows if row.num_logits]
        began = time.perf_counter()
        output = self._engine.step(rows)
        launched = time.perf_counter()
        answers = self._answers([begun.request for begun in complete], output) if complete else []
        # Where the device computes by itself, what has been queued behind the pass waits for it.
        computed = max(output.finish(), launched - began)
        self._note("inference", computed, taking)
        self._note("sampling and routing", time.perf_counter() - began - computed, complete)
        replies = {}
        for begun, answer in zip(complete, answers, strict=True):
            rid = begun.request.rid
            with self._timed("release and prefix cache", [begun]):
                if not self._keep:
                    self._drop(rid)
            del self._begun[rid]
            replies[rid] = Reply([answer], begun.tokens, begun.parts)
        return replies

    def _answers(self, requests: Sequence[Request], output: EngineOutput) -> list[Answer]:
        chosen, routed = self._routing.answer(requests, output.logits, output.hidden)
        logprobs = output.logits.log_softmax(dim=-1).tolist() if self._logprobs else [None] * len(requests)
        return [Answer(*one) for one in zip(chosen, routed, logprobs, strict=True)]

    @contextmanager
    def _timed(self, part: str, those: Sequence[_Begun]) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._note(part, time.perf_counter() - began, those)

    def _note(self, part: str, seconds: float, those: Sequence[_Begun]) -> None:
        """Evenly."""
        for begun in those:
            begun.parts[part] += seconds / len(those)

    def _drop(self, rid: str) -> None:
        if rid in self._open:
            del self._open[rid]
            self._engine.free(rid, self._routing.request(rid).ids[: self._engine.kv_len(rid)])
