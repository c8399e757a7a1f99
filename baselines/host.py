"""One model and its router, for executors that hold the requests themselves."""
from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch

from tokenrouter.core import Request, SamplingParams
from tokenrouter.engine.base import Engine, EngineOutput, ModelInfo, Row
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
    """Answers in the order of the asks. `tokens`: computed in the step, recomputed prefixes included. `parts`: seconds
    that went into each part of it (PARTS)."""

    answers: list[Answer]
    tokens: int
    parts: dict[str, float]


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
    """The requests at one model: what has come of them, how their proposals are drawn, and what its router answers.

    It never asks where logits come from.
    """

    def __init__(self, router: BaseRouter, model: ModelContext) -> None:
        self.router = router
        self.vocab_size, self._eos = model.vocab_size, frozenset(model.eos_token_ids)
        self._requests: dict[str, Request] = {}
        router.setup(model)

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

    def ids(self, rid: str) -> list[int]:
        return self._requests[rid].ids

    def forget(self, rid: str) -> None:
        self._requests.pop(rid, None)


class Host:
    """`Steps` in this process. Without `keep`, a request's KV is dropped after each step."""

    def __init__(
        self, engine: Engine, router: BaseRouter, *, keep: bool, logprobs: bool, chunk_tokens: int
    ) -> None:
        info = self.info = engine.info
        self.capacity = engine.capacity().total
        self._engine, self._keep, self._logprobs = engine, keep, logprobs
        self._chunk = chunk_tokens
        self._parts = dict.fromkeys(PARTS, 0.0)
        self._open: set[str] = set()
        self._routing = Routing(router, ModelContext(
            engine.device, info.vocab_size, info.hidden_size, info.eos_token_ids, engine.embed))

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._routing.start(vocab_size, eos_token_ids)

    @torch.inference_mode()
    def step(self, asks: Sequence[Ask]) -> Reply:
        self._parts = dict.fromkeys(PARTS, 0.0)
        requests = [self._routing.take(ask) for ask in asks]
        output, tokens = self._forward(requests)
        began = time.perf_counter()
        chosen, routed = self._routing.answer(requests, output.logits, output.hidden)
        logprobs = output.logits.log_softmax(dim=-1).tolist() if self._logprobs else [None] * len(asks)
        self._note("sampling and routing", began)
        began = time.perf_counter()
        if not self._keep:
            for request in requests:
                self._drop(request.rid)
        self._note("release and prefix cache", began)
        answers = [Answer(*one) for one in zip(chosen, routed, logprobs, strict=True)]
        return Reply(answers, tokens, self._parts)

    def append(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._routing.take(ask)

    def end(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._drop(rid)
            self._routing.forget(rid)

    def _forward(self, requests: Sequence[Request]) -> tuple[EngineOutput, int]:
        """One pass that appends to each request's KV what it lacks; long prefixes go ahead in chunks."""
        engine, rows, tokens = self._engine, [], 0
        for request in requests:
            rid = request.rid
            if rid not in self._open:
                began = time.perf_counter()
                engine.open(rid, request.ids)
                self._open.add(rid)
                self._note("prefix matching", began)
            elif engine.kv_len(rid) == len(request.ids):  # it is back with nothing new: the last logits once more
                engine.truncate(rid, len(request.ids) - 1)
            while len(request.ids) - engine.kv_len(rid) > self._chunk:
                done = engine.kv_len(rid)
                self._run([self._room(Row(rid, request.ids[done : done + self._chunk], 0))])
                tokens += self._chunk
            rows.append(self._room(Row(rid, request.ids[engine.kv_len(rid) :])))
        return self._run(rows), tokens + sum(len(row.token_ids) for row in rows)

    def _run(self, rows: Sequence[Row]) -> EngineOutput:
        began = time.perf_counter()
        output = self._engine.step(rows)
        self._note("inference", began)
        return output

    def _room(self, row: Row) -> Row:
        began = time.perf_counter()
        if not self._engine.allocate(row.rid, len(row.token_ids)):
            raise RuntimeError(f"{self.info.name}: a KV pool of {self.capacity} tokens is too small for this batch")
        self._note("page allocation", began)
        return row

    def _note(self, part: str, began: float) -> None:
        self._parts[part] += time.perf_counter() - began

    def _drop(self, rid: str) -> None:
        if rid in self._open:
            self._open.remove(rid)
            self._engine.free(rid, self._routing.ids(rid)[: self._engine.kv_len(rid)])
