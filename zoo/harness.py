"""A cluster in one process: real engines, schedulers and routing, under a schedule that chance brings about.

Processes and sockets are all that is missing. Delivery is FIFO for each pair of subservers, as on a socket, and
otherwise in any order, so one seed is one interleaving of steps and messages.
"""
from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec, ModelSpec
from tokenrouter.core import SamplingParams
from tokenrouter.engine.base import Engine
from tokenrouter.engine.routers import context_of
from tokenrouter.interface import BaseRouter
from tokenrouter.server.frontend import EndEvent, Event, Frontend, TokenEvent
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.lifecycle import Lifecycle
from tokenrouter.subserver.loop import Subserver
from tokenrouter.subserver.mailbox import Outbox
from tokenrouter.subserver.policies import make_policy
from tokenrouter.subserver.routing import Routing
from tokenrouter.subserver.scheduler import Scheduler
from tokenrouter.subserver.stats import Stats
from zoo.walk import Record


class Wire:
    """Messages under way, FIFO for each (sender, receiver); through the real codec."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self.sent: list[tuple[int, int, m.Message]] = []

    def deliver(self, rng: random.Random, inbox: dict[int, list[bytes]]) -> None:
        ready = [pair for pair, queue in self.queues.items() if queue]
        if ready:
            pair = rng.choice(sorted(ready))
            inbox[pair[1]].append(self.queues[pair].popleft())


class WireMailbox(Outbox):
    """A mailbox (tokenrouter/subserver/mailbox.py) whose socket is the wire."""

    def __init__(self, index: int, wire: Wire, inbox: dict[int, list[bytes]]) -> None:
        super().__init__(index, epoch=1)
        self._wire, self._inbox = wire, inbox

    def receive(self, timeout_s: float = 0.0, *, awake: bool = False) -> Iterator[tuple[int, m.Message]]:
        arrived, self._inbox[self.index] = self._inbox[self.index], []
        for data in arrived:
            envelope = msgspec.msgpack.decode(data, type=m.Envelope)
            for message in envelope.messages:
                yield envelope.sender, message

    def post(self, destination: int, message: m.Message, *, patient: bool = False) -> None:
        super().post(destination, message, patient=patient)
        self._wire.sent.append((self.index, destination, message))

    def _send(self, destination: int, data: bytes) -> None:
        self._wire.queues[self.index, destination].append(data)


class InProcessCluster:
    """`engines[i]` is subserver i's. `turn()` lets one of them, or the wire, chosen by chance, take one step."""

    def __init__(self, algorithms: list[AlgorithmSpec], engines: Sequence[Engine], *, seed: int,
                 batching: BatchingSpec | None = None, chunk_tokens: int = 8, max_batch: int = 64,
                 eos_token_ids: frozenset[int] | None = None) -> None:
        """`eos_token_ids` replace the models' own."""
        self.rng = random.Random(seed)
        self.wire = Wire()
        self.inbox: dict[int, list[bytes]] = defaultdict(list)
        self.engines = list(engines)
        self.eos_token_ids = eos_token_ids
        if eos_token_ids is None:
            self.eos_token_ids = frozenset(token for engine in engines for token in engine.info.eos_token_ids)
        self.spec = ClusterSpec(
            models=[ModelSpec(name=engine.info.name, path=engine.info.name) for engine in engines],
            algorithms=algorithms, batching=batching or BatchingSpec())
        self.spec.check()
        self.subservers = [self._subserver(i, chunk_tokens, max_batch) for i in range(len(engines))]
        self.frontend = Frontend(WireMailbox(m.FRONT_END, self.wire, self.inbox), self.spec, lambda: None)  # type: ignore[arg-type]
        self.frontend.models = [engine.info for engine in engines]
        self.frontend.capacities = [engine.capacity().total for engine in engines]
        self.events: list[Event] = []

    def _subserver(self, index: int, chunk_tokens: int, max_batch: int) -> Subserver:
        engine, mailbox = self.engines[index], WireMailbox(index, self.wire, self.inbox)
        batching = self.spec.batching
        scheduler = Scheduler(engine, make_policy(batching, index), max_batch=max_batch, chunk_tokens=chunk_tokens)
        algorithms = [a.build() for a in self.spec.algorithms]
        models = [a.models for a in self.spec.algorithms]
        routers: dict[int, BaseRouter] = {}
        for number, bound in enumerate(models):
            if index in bound:
                routers[number] = algorithms[number].router(algorithms[number].roles[bound.index(index)])
                routers[number].setup(context_of(engine))
        lifecycle = Lifecycle(index, mailbox, scheduler, algorithms, models, routers, lambda command: {})  # type: ignore[arg-type]
        assert self.eos_token_ids is not None
        routing = Routing(algorithms, routers, lifecycle, eos_token_ids=self.eos_token_ids,
                          vocab_size=min(other.info.vocab_size for other in self.engines))
        return Subserver(engine, mailbox, scheduler, lifecycle, routing, Stats(), lambda: True)  # type: ignore[arg-type]

    def submit(self, prompt: Sequence[int], sampling: SamplingParams, algorithm: str | None = None,
               params: Mapping[str, Any] | None = None) -> str:
        """To the first algorithm, or the one that is named."""
        return self.frontend.submit(prompt, sampling, algorithm or self.spec.algorithms[0].name, params)

    def turn(self) -> None:
        pick = self.rng.randrange(len(self.subservers) + 3)
        if pick < len(self.subservers):
            self.subservers[pick].turn()
        else:
            self.wire.deliver(self.rng, self.inbox)
        self.events += self.frontend.poll(0.0)

    def run(self, max_turns: int = 200_000) -> None:
        """Until nothing is open, and every message has arrived."""
        for _ in range(max_turns):
            if not self.frontend.num_open and not any(self.wire.queues.values()) and not any(self.inbox.values()):
                return
            self.turn()
        raise AssertionError(f"{self.frontend.num_open} requests open after {max_turns} turns")

    def is_over(self, rid: str) -> bool:
        return any(isinstance(event, EndEvent) and event.rid == rid for event in self.events)

    def collect(self, rid: str, record: Record) -> Record:
        """Fill in `record` with what the front end was told of a request."""
        record.token_ids, record.token_models, record.finish_reason = [], [], None
        for event in self.events:
            if event.rid == rid and isinstance(event, TokenEvent):
                assert event.position == len(record.token_ids) and record.finish_reason is None
                record.token_ids += event.token_ids
                record.token_models += [event.role] * len(event.token_ids)
            elif event.rid == rid and isinstance(event, EndEvent):
                assert record.finish_reason is None, "one end a request"
                record.finish_reason = event.reason.value
                record.handoffs, record.discarded = event.handoffs, event.discarded
        return record

    def check_idle(self) -> None:
        """AssertionError if anything of any request is left anywhere."""
        for subserver in self.subservers:
            assert not subserver.lifecycle.active and not subserver.scheduler.requests
            subserver.engine.check([])
