"""A subserver cluster in one process, for tests: real scheduler, lifecycle, routing and page pool; a toy model.

The toy model's next token is a hash of (model, all ids), so any lost, doubled or misplaced token shows in what
follows. Delivery between processes is FIFO for each pair and otherwise in any order that the test chooses.
"""
from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec
import torch

from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec, ModelSpec
from tokenrouter.core import SamplingParams
from tokenrouter.engine.base import EngineCounters, EngineOutput, ModelInfo, Row
from tokenrouter.engine.paged import PagedEngine
from tokenrouter.engine.pages import PagePool
from tokenrouter.interface import BaseRouter, StepResult
from tokenrouter.server.frontend import EndEvent, Event, Frontend, TokenEvent
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.lifecycle import Lifecycle
from tokenrouter.subserver.loop import Subserver
from tokenrouter.subserver.policy import make_policy
from tokenrouter.subserver.routing import Routing
from tokenrouter.subserver.scheduler import Scheduler
from tokenrouter.subserver.stats import Stats

VOCAB, EOS = 64, 0


def toss(*parts: int) -> int:
    data = b"".join(part.to_bytes(8, "little", signed=True) for part in parts)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def toy_token(model: int, ids: Sequence[int]) -> int:
    """EOS about once in 40 tokens."""
    draw = toss(model, *ids)
    return EOS if draw % 40 == 0 else 1 + draw % (VOCAB - 1)


class ToyEngine(PagedEngine):
    device = torch.device("cpu")

    def __init__(self, model: int, pages: int, page_size: int = 4) -> None:
        self.model = model
        self.info = ModelInfo(f"toy{model}", VOCAB, 4, 10_000, (EOS,), 1, "float32", 4, 4, "toy")
        self.counters = EngineCounters()
        self._pool = PagePool(pages, page_size, copy=lambda a, b: None, counters=self.counters)

    def step(self, rows: Sequence[Row]) -> EngineOutput:
        logits = []
        for row in rows:
            assert row.token_ids, "an append is of one token or more"
            self._pool.append(row.rid, row.token_ids)
            table = self._pool[row.rid]
            assert len(table.ids) <= len(table.pages) * self._pool.page_size, "written beyond its pages"
            if row.num_logits:
                out = torch.zeros(VOCAB)
                out[toy_token(self.model, table.ids)] = 9.0
                logits.append(out)
        self.counters.steps += 1
        stacked = torch.stack(logits) if logits else torch.zeros(0, VOCAB)
        return EngineOutput(stacked, torch.zeros(len(logits), 4), 0.0)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(token_ids), 4)


class TossRouter(BaseRouter):
    """Leaves for a peer drawn by a hash of the accepted ids and the proposal, in `percent` of steps."""

    percent = 30

    def route(self, result: StepResult) -> torch.Tensor:
        return torch.tensor([self.choose(v.origin_input_ids + v.output_ids) for v in result.requests])

    def choose(self, ids: Sequence[int]) -> int:
        draw, peers = toss(17, self.role, *ids), len(self.roles) - 1
        return 1 + (draw >> 8) % peers if peers and draw % 100 < self.percent else 0


class TossKeeper(TossRouter):
    handoff = "keep"
    percent = 60


class LeaveOnce(BaseRouter):
    """Discards and leaves at each position once; stays when the request is back with nothing added."""

    def route(self, result: StepResult) -> torch.Tensor:
        answers = [int(view.state.get("left") != view.num_accepted) for view in result.requests]
        for view in result.requests:
            view.state["left"] = view.num_accepted
        return torch.tensor(answers)


class LeaveAlways(BaseRouter):
    """Discards and leaves."""

    def route(self, result: StepResult) -> torch.Tensor:
        return torch.ones(len(result.requests), dtype=torch.long)


def toy_algorithm(roles: int, entry: int = 0, name: str = "toy") -> AlgorithmSpec:
    names = [f"m{r}" for r in range(roles)]
    routers = {n: {"_target_": f"tests.toy.{'TossKeeper' if r else 'TossRouter'}"} for r, n in enumerate(names)}
    return AlgorithmSpec(name=name, roles=names, routers=routers, entry=names[entry], models=list(range(roles)))


def toy_reference(spec: AlgorithmSpec, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], list[int], str]:
    """What one request must come to, decoded by itself: tokens, roles that wrote them, why it ended."""
    algorithm = spec.build()
    routers = [algorithm.router(role) for role in spec.roles]
    ids, authors, role = list(prompt), [], spec.roles.index(str(spec.entry))
    while True:
        token = toy_token(role, ids)
        destination = routers[role].choose([*ids, token])  # type: ignore[attr-defined]
        if destination == 0 or routers[role].handoff == "keep":
            ids.append(token)
            authors.append(role)
            if token == EOS or len(authors) == max_tokens:
                return ids[len(prompt):], authors, "stop" if token == EOS else "length"
        if destination:
            role = algorithm.destination_role(role, destination)


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


class ToyMailbox:
    def __init__(self, index: int, wire: Wire, inbox: dict[int, list[bytes]]) -> None:
        self.index, self._wire, self._inbox = index, wire, inbox
        self._outbox: dict[int, list[m.Message]] = {}

    def receive(self, timeout_s: float = 0.0) -> Iterator[tuple[int, m.Message]]:
        arrived, self._inbox[self.index] = self._inbox[self.index], []
        for data in arrived:
            envelope = msgspec.msgpack.decode(data, type=m.Envelope)
            for message in envelope.messages:
                yield envelope.sender, message

    def post(self, destination: int, message: m.Message) -> None:
        self._outbox.setdefault(destination, []).append(message)
        self._wire.sent.append((self.index, destination, message))

    def flush(self) -> None:
        for destination, messages in self._outbox.items():
            data = msgspec.msgpack.encode(m.Envelope(self.index, 1, messages))
            self._wire.queues[self.index, destination].append(data)
        self._outbox.clear()


class ToyCluster:
    """`turn()` lets one randomly chosen subserver, or the wire, take one step."""

    def __init__(self, algorithms: list[AlgorithmSpec], *, models: int, pages: int, seed: int,
                 batching: BatchingSpec | None = None, chunk_tokens: int = 8, max_batch: int = 64) -> None:
        self.rng = random.Random(seed)
        self.wire = Wire()
        self.inbox: dict[int, list[bytes]] = defaultdict(list)
        self.spec = ClusterSpec(models=[ModelSpec(name=f"toy{i}", path="toy") for i in range(models)],
                                algorithms=algorithms, batching=batching or BatchingSpec())
        self.spec.check()
        self.subservers = [self._subserver(i, pages, chunk_tokens, max_batch) for i in range(models)]
        self.frontend = Frontend(ToyMailbox(m.FRONT_END, self.wire, self.inbox), self.spec, lambda: None)  # type: ignore[arg-type]
        self.frontend.models = [s.engine.info for s in self.subservers]
        self.frontend.capacities = [s.engine.capacity().total for s in self.subservers]
        self.events: list[Event] = []

    def _subserver(self, index: int, pages: int, chunk_tokens: int, max_batch: int) -> Subserver:
        engine, mailbox = ToyEngine(index, pages), ToyMailbox(index, self.wire, self.inbox)
        batching = self.spec.batching
        scheduler = Scheduler(engine, make_policy(batching, index), max_batch=max_batch, chunk_tokens=chunk_tokens,
                              max_wait_s=batching.max_wait_s)
        algorithms = [a.build() for a in self.spec.algorithms]
        models = [a.models for a in self.spec.algorithms]
        routers = {a: algorithms[a].router(algorithms[a].roles[models[a].index(index)])
                   for a in range(len(algorithms)) if index in models[a]}
        lifecycle = Lifecycle(index, mailbox, scheduler, algorithms, models, routers, lambda command: {})  # type: ignore[arg-type]
        routing = Routing(algorithms, routers, lifecycle, eos_token_ids=frozenset({EOS}), vocab_size=VOCAB)
        return Subserver(engine, mailbox, scheduler, lifecycle, routing, Stats(), lambda: True)  # type: ignore[arg-type]

    def submit(self, prompt: list[int], max_tokens: int, algorithm: str = "toy") -> str:
        return self.frontend.submit(prompt, SamplingParams(0, max_tokens), algorithm)

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

    def output(self, rid: str) -> tuple[list[int], list[int], str | None]:
        tokens, roles, reason = [], [], None
        for event in self.events:
            if event.rid == rid and isinstance(event, TokenEvent):
                assert event.position == len(tokens) and reason is None
                tokens += event.token_ids
                roles += [event.role] * len(event.token_ids)
            elif event.rid == rid and isinstance(event, EndEvent):
                assert reason is None, "one end a request"
                reason = event.reason.value
        return tokens, roles, reason

    def check_idle(self) -> None:
        """Nothing of any request is left anywhere."""
        for subserver in self.subservers:
            assert not subserver.lifecycle.active and not subserver.scheduler.requests
            subserver.engine.check([])
