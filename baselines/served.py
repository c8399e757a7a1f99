"""`Steps` at another program's server: it computes, and the router runs here on what it tells."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import torch

from baselines.host import Answer, Ask, Reply, Routing
from baselines.servers import SERVERS, Server, Sessions, Told, server_of
from tokenrouter.cluster.models import context, output_table, skeleton
from tokenrouter.cluster.placement import plan_capacity
from tokenrouter.cluster.spec import ClusterSpec, ModelSpec
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.engine.memory import footprint
from tokenrouter.engine.torch import load
from tokenrouter.interface import BaseRouter, ModelContext


class ServerAt(msgspec.Struct, array_like=True):
    """A running server: its kind (baselines/servers.py), and where it is."""

    kind: str
    url: str


class ServedHost:
    """Each step is one call with the whole prefix, or with `keep` in a session; threads may call at the same time.

    Log-probabilities are logits but for a constant, which softmax, entropy and sampling do not see. A router that looks
    at hidden states may look at logits themselves: there the constant is had from the hidden state and the output
    embedding of one token. Of ids that were not asked for, logits are -inf.
    """

    def __init__(self, spec: ClusterSpec, role: int, at: ServerAt, *, keep: bool) -> None:
        model, algorithm = spec.models[role], spec.algorithms[0].build()
        router = algorithm.router(algorithm.roles[role])
        self._server = server_of(at.kind)
        known = context(model.path, model.revision, download=True)
        assert known is not None  # it is downloaded if need be
        known, self._device = _on(torch.device(model.device), known), torch.device(model.device)
        self.info = _info(model, self._server)
        self.capacity = plan_capacity(spec)[role]
        router.setup(known)
        self._routing = Routing(router, known)
        self._hidden = "hidden_states" in router.needs
        self._head = output_table(model.path, model.revision) if self._hidden and router.top_logits != 0 else None
        self._client = httpx.Client(  # not verify: certificates, which take long to load
            base_url=at.url, timeout=None, verify=False, limits=httpx.Limits(max_connections=None))
        self._one = threading.Lock()  # of the router, which is written for one thread
        self._kept = None
        if keep:
            assert self._server.sessions is not None  # as check says
            self._kept = _Kept(self._server.sessions, self._post, self.capacity, spec.engine.max_batch)

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._routing.start(vocab_size, eos_token_ids)

    def append(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._routing.take(ask)

    def end(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._routing.forget(rid)
            if self._kept:
                self._kept.close(rid)

    @torch.inference_mode()
    def step(self, asks: Sequence[Ask]) -> Reply:
        """Of one request. The part "inference" is the time in the server where it tells that, else the whole call."""
        [request] = [self._routing.take(ask) for ask in asks]
        began = time.perf_counter()
        told = self._call(request.rid, request.ids, width(
            self._routing.router, request.sampling, self.info.vocab_size, self._routing.vocab_size))
        called = time.perf_counter()
        with self._one:
            hidden = torch.tensor([told.hidden]) if self._hidden else None
            logits = self._logits(told, hidden).to(self._device)
            hidden = None if hidden is None else hidden.to(self._device)
            [token], [destination] = self._routing.answer([request], logits, hidden)
        parts = {"inference": told.seconds or called - began, "sampling and routing": time.perf_counter() - called}
        return Reply([Answer(token, destination)], told.computed, parts)

    def _call(self, rid: str, ids: Sequence[int], count: int) -> Told:
        server, kept = self._server, self._kept
        if kept is None:
            return server.read(self._post(server.path, server.body(ids, count, hidden=self._hidden)))
        with kept.session(rid, len(ids)) as held:
            body = server.body(ids[held:], count, hidden=self._hidden)
            return server.read(self._post(server.path, kept.sessions.body(body, rid)))

    def _post(self, path: str, body: dict[str, Any]) -> bytes:
        response = self._client.post(path, content=msgspec.json.encode(body),
                                     headers={"Content-Type": "application/json"})
        if response.status_code != 200:
            raise RuntimeError(f"{self._server.name} answered {response.status_code}: {response.text[:300]}")
        return response.content

    def _logits(self, told: Told, hidden: torch.Tensor | None) -> torch.Tensor:
        """[1, V] on the CPU, where the output table is, of which it takes one row."""
        logits = torch.full((1, self.info.vocab_size), -torch.inf)
        logits[0, told.ids] = torch.tensor(told.logprobs)
        if self._head is not None and hidden is not None:
            logits += hidden[0] @ self._head[told.ids[0]] - told.logprobs[0]
        return logits


class _Kept:
    """The sessions at one server, one a request, opened by its first call.

    A server does not evict a session's KV, and a call that finds no room would wait for ever. So sessions between two
    calls are closed to make some; their next call has the whole prefix again. The last opened goes first: requests come
    by turns, and the longest unused would be the next that is needed.
    """

    def __init__(self, sessions: Sessions, post: Callable[[str, dict[str, Any]], bytes], capacity: int,
                 most: int) -> None:
        """`capacity`: in tokens. `most`: of sessions."""
        self.sessions, self._post, self._capacity, self._most = sessions, post, capacity, most
        self._tokens: dict[str, int] = {}  # the first opened first
        self._calling: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def session(self, rid: str, length: int) -> Iterator[int]:
        """For a call that makes it so long: how many tokens it has. Waits where calls under way leave no room."""
        with self._changed:
            while not self._fits(rid, length):
                idle = next((other for other in reversed(self._tokens) if other not in {rid, *self._calling}), None)
                if idle is None:
                    self._changed.wait()
                else:
                    self._close(idle)
            held = self._tokens.get(rid)
            self._tokens[rid] = length
            self._calling.add(rid)
        try:
            if held is None:
                self._post(*self.sessions.opening(rid))
            yield held or 0
        finally:
            with self._changed:
                self._calling.remove(rid)
                self._changed.notify_all()

    def close(self, rid: str) -> None:
        with self._changed:
            if rid in self._tokens:
                self._close(rid)
                self._changed.notify_all()

    def _close(self, rid: str) -> None:
        del self._tokens[rid]
        self._post(*self.sessions.closing(rid))

    def _fits(self, rid: str, length: int) -> bool:
        """Always alone. The server lets a call in with a token or two to spare."""
        lengths = [length, *(tokens for other, tokens in self._tokens.items() if other != rid)]
        return len(lengths) == 1 or (
            len(lengths) <= self._most and sum(lengths) + 2 * len(lengths) <= self._capacity)


def width(router: BaseRouter, sampling: SamplingParams, vocab_size: int, shared: int) -> int:
    """How many log-probabilities it takes for the same proposal and the same route as of the whole vocabulary.

    `vocab_size`: of the model, of which ids from `shared` on are never drawn. Ties at the edge of `top_k` aside.
    """
    changed = sampling.min_tokens or sampling.presence_penalty or sampling.frequency_penalty
    if router.top_logits is None or changed or sampling.repetition_penalty != 1:
        return vocab_size
    drawn = (sampling.top_k or vocab_size) if sampling.temperature else 1
    return min(vocab_size, max(drawn, router.top_logits) + vocab_size - shared)


def check(spec: ClusterSpec, kind: str, system: str, *, sessions: bool = False) -> None:
    """Raise InputError, with nothing started, if such servers do not give the algorithm what it needs."""
    server, algorithm = server_of(kind), spec.algorithms[0].build()
    if sessions and server.sessions is None:
        raise InputError(f"system.options.sessions=true: {server.name}'s server has none; allowed is false")
    if spec.engine.kind == "emulated":
        raise InputError(f"engine=emulated: allowed with system={system} is an engine with models")
    for model in spec.models:
        if model.load_format != "auto":
            raise InputError(f"models.load_format={model.load_format}: allowed with system={system} is auto")
    for role in algorithm.roles:
        if "hidden_states" in algorithm.router(role).needs and not server.hidden_states:
            others = [f"std_{name}" for name, other in SERVERS.items() if other.hidden_states]
            raise InputError(f"system={system}: {server.name}'s API does not give the hidden states that the router of "
                             f"algo={algorithm.name} needs at its role {role!r}; allowed are std, std_plus, "
                             f"{', '.join(others)}, which do")


def _on(device: torch.device, known: ModelContext) -> ModelContext:
    """The router runs where the model does, also when it is in another process."""
    return known._replace(device=device, embed=lambda ids: known.embed(ids.cpu()).to(device))


def _info(model: ModelSpec, server: Server) -> ModelInfo:
    made = skeleton(model.path, model.revision)
    text, size = made.config.get_text_config(), footprint(model.path, model.dtype, revision=model.revision)
    return ModelInfo(
        name=model.name, vocab_size=text.vocab_size, hidden_size=text.hidden_size,
        context_length=load.context_length(text), eos_token_ids=load.eos_token_ids(made),
        num_params=sum(parameter.numel() for parameter in made.parameters()), dtype=model.dtype,
        weight_bytes=size.weight_bytes, bytes_per_token=size.bytes_per_token, engine=f"{server.name} server")
