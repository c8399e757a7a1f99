"""`Steps` at another program's server: it computes, and the router runs here on what it tells."""
from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import httpx
import msgspec
import torch

from baselines.host import Answer, Ask, Reply, Routing
from baselines.servers import SERVERS, Server, Told, server_of
from tokenrouter.cluster.models import context, output_table, skeleton
from tokenrouter.cluster.placement import plan_capacity
from tokenrouter.cluster.spec import ClusterSpec, ModelSpec
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.engine.memory import footprint
from tokenrouter.engine.torch import load
from tokenrouter.interface import BaseRouter


class ServerAt(msgspec.Struct, array_like=True):
    """A running server: its kind (baselines/servers.py), and where it is."""

    kind: str
    url: str


class ServedHost:
    """Each step is one call with the whole prefix; threads may call at the same time.

    Log-probabilities are logits but for a constant, which softmax, entropy and sampling do not see. A router that looks
    at hidden states may look at logits themselves: there the constant is had from the hidden state and the output
    embedding of one token. Of ids that were not asked for, logits are -inf.
    """

    def __init__(self, spec: ClusterSpec, role: int, at: ServerAt) -> None:
        model, algorithm = spec.models[role], spec.algorithms[0].build()
        router = algorithm.router(algorithm.roles[role])
        self._server = server_of(at.kind)
        known = context(model.path, model.revision, download=True)
        assert known is not None  # it is downloaded if need be
        self.info = _info(model, self._server)
        self.capacity = plan_capacity(spec)[role]
        self._routing = Routing(router, known)
        self._hidden = "hidden_states" in router.needs
        self._head = output_table(model.path, model.revision) if self._hidden and router.top_logits != 0 else None
        self._client = httpx.Client(  # not verify: certificates, which take long to load
            base_url=at.url, timeout=None, verify=False, limits=httpx.Limits(max_connections=None))
        self._one = threading.Lock()  # of the router, which is written for one thread

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._routing.start(vocab_size, eos_token_ids)

    def append(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._routing.take(ask)

    def end(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._routing.forget(rid)

    @torch.inference_mode()
    def step(self, asks: Sequence[Ask]) -> Reply:
        """Of one request. The part "inference" is the time in the server where it tells that, else the whole call."""
        [request] = [self._routing.take(ask) for ask in asks]
        began = time.perf_counter()
        told = self._call(request.ids, width(self._routing.router, request.sampling, self.info.vocab_size,
                                             self._routing.vocab_size))
        called = time.perf_counter()
        with self._one:
            hidden = torch.tensor([told.hidden]) if self._hidden else None
            [token], [destination] = self._routing.answer([request], self._logits(told, hidden), hidden)
        parts = {"inference": told.seconds or called - began, "sampling and routing": time.perf_counter() - called}
        return Reply([Answer(token, destination)], told.computed, parts)

    def _call(self, ids: Sequence[int], count: int) -> Told:
        body = msgspec.json.encode(self._server.body(ids, count, hidden=self._hidden))
        response = self._client.post(self._server.path, content=body, headers={"Content-Type": "application/json"})
        if response.status_code != 200:
            raise RuntimeError(f"{self._server.name} answered {response.status_code}: {response.text[:300]}")
        return self._server.read(response.content)

    def _logits(self, told: Told, hidden: torch.Tensor | None) -> torch.Tensor:
        """[1, V]"""
        logits = torch.full((1, self.info.vocab_size), -torch.inf)
        logits[0, told.ids] = torch.tensor(told.logprobs)
        if self._head is not None and hidden is not None:
            logits += hidden[0] @ self._head[told.ids[0]] - told.logprobs[0]
        return logits


def width(router: BaseRouter, sampling: SamplingParams, vocab_size: int, shared: int) -> int:
    """How many log-probabilities it takes for the same proposal and the same route as of the whole vocabulary.

    `vocab_size`: of the model, of which ids from `shared` on are never drawn. Ties at the edge of `top_k` aside.
    """
    changed = sampling.min_tokens or sampling.presence_penalty or sampling.frequency_penalty
    if router.top_logits is None or changed or sampling.repetition_penalty != 1:
        return vocab_size
    drawn = (sampling.top_k or vocab_size) if sampling.temperature else 1
    return min(vocab_size, max(drawn, router.top_logits) + vocab_size - shared)


def check(spec: ClusterSpec, kind: str, system: str) -> None:
    """Raise InputError, with nothing started, if such servers do not give the algorithm what it needs."""
    server, algorithm = server_of(kind), spec.algorithms[0].build()
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


def _info(model: ModelSpec, server: Server) -> ModelInfo:
    made = skeleton(model.path, model.revision)
    text, size = made.config.get_text_config(), footprint(model.path, model.dtype, revision=model.revision)
    return ModelInfo(
        name=model.name, vocab_size=text.vocab_size, hidden_size=text.hidden_size,
        context_length=load.context_length(text), eos_token_ids=load.eos_token_ids(made),
        num_params=sum(parameter.numel() for parameter in made.parameters()), dtype=model.dtype,
        weight_bytes=size.weight_bytes, bytes_per_token=size.bytes_per_token, engine=f"{server.name} server")
