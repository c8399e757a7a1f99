"""One model and its router, for executors that hold the requests themselves."""
from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch

from tokenrouter.core import Request, SamplingParams
from tokenrouter.engine.base import Engine, EngineOutput, ModelInfo, Row
from tokenrouter.interface import BaseRouter, LogitsOutput, ModelContext, RequestView, StepResult
from tokenrouter.sampling import draw_of, sample


class Ask(msgspec.Struct, array_like=True):
    """A step for one request. `ids`: prompt and accepted tokens from `start` on, before which the host has all."""

    rid: str
    start: int
    ids: list[int]
    authors: list[int]  # of the tokens among `ids`
    prompt_len: int
    sampling: SamplingParams
    params: dict[str, Any]


class Answer(msgspec.Struct, array_like=True):
    """The proposal, and what the router answers to it. `logprobs` [V] where the style carries them."""

    token: int
    destination: int
    logprobs: list[float] | None = None


class Reply(msgspec.Struct, array_like=True):
    """Answers in the order of the asks. `tokens`: computed in the step, recomputed prefixes included."""

    answers: list[Answer]
    compute_s: float
    tokens: int


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


class Host:
    """`Steps` in this process. Without `keep`, a request's KV is dropped after each step."""

    def __init__(
        self, engine: Engine, router: BaseRouter, *, keep: bool, logprobs: bool, chunk_tokens: int
    ) -> None:
        info = self.info = engine.info
        self.capacity = engine.capacity().total
        self._engine, self._router, self._keep, self._logprobs = engine, router, keep, logprobs
        self._chunk = chunk_tokens
        self._vocab_size, self._eos = info.vocab_size, frozenset(info.eos_token_ids)
        self._requests: dict[str, Request] = {}
        self._open: set[str] = set()
        router.setup(ModelContext(engine.device, info.vocab_size, info.hidden_size, info.eos_token_ids, engine.embed))

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._vocab_size, self._eos = vocab_size, frozenset(eos_token_ids)

    @torch.inference_mode()
    def step(self, asks: Sequence[Ask]) -> Reply:
        began = time.perf_counter()
        requests = [self._take(ask) for ask in asks]
        output, tokens, compute_s = self._forward(requests)
        proposals = sample(output.logits, [draw_of(request, self._eos) for request in requests], self._vocab_size)
        chosen = proposals.tolist()
        views = [RequestView(request, token) for request, token in zip(requests, chosen, strict=True)]
        hidden = output.hidden if "hidden_states" in self._router.needs else None
        routed = self._router.route(StepResult(proposals, LogitsOutput(output.logits, hidden), views)).tolist()
        logprobs = output.logits.log_softmax(dim=-1).tolist() if self._logprobs else [None] * len(asks)
        if not self._keep:
            for request in requests:
                self._drop(request.rid)
        answers = [Answer(*one) for one in zip(chosen, routed, logprobs, strict=True)]
        return Reply(answers, min(compute_s, time.perf_counter() - began), tokens)

    def append(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._take(ask)

    def end(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._drop(rid)
            self._requests.pop(rid, None)

    def _take(self, ask: Ask) -> Request:
        request = self._requests.get(ask.rid)
        if request is None:
            role, roles = self._router.role, len(self._router.roles)
            request = self._requests[ask.rid] = Request(
                ask.rid, 0, 0, role, role, ask.sampling, ask.params, [], ask.prompt_len, [0] * roles)
        request.ids[ask.start :] = ask.ids
        request.authors[max(0, ask.start - ask.prompt_len) :] = ask.authors
        return request

    def _forward(self, requests: Sequence[Request]) -> tuple[EngineOutput, int, float]:
        """One pass that appends to each request's KV what it lacks; long prefixes go ahead in chunks."""
        engine, rows, tokens, compute_s = self._engine, [], 0, 0.0
        for request in requests:
            rid = request.rid
            if rid not in self._open:
                engine.open(rid, request.ids)
                self._open.add(rid)
            while len(request.ids) - engine.kv_len(rid) > self._chunk:
                done = engine.kv_len(rid)
                ahead = self._room(Row(rid, request.ids[done : done + self._chunk], 0))
                compute_s += engine.step([ahead]).compute_s
                tokens += self._chunk
            rows.append(self._room(Row(rid, request.ids[engine.kv_len(rid) :])))
        output = engine.step(rows)
        return output, tokens + sum(len(row.token_ids) for row in rows), compute_s + output.compute_s

    def _room(self, row: Row) -> Row:
        if not self._engine.allocate(row.rid, len(row.token_ids)):
            raise RuntimeError(f"{self.info.name}: a KV pool of {self.capacity} tokens is too small for this batch")
        return row

    def _drop(self, rid: str) -> None:
        if rid in self._open:
            self._open.remove(rid)
            self._engine.free(rid, self._requests[rid].ids[: self._engine.kv_len(rid)])
