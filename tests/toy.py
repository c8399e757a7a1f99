"""A subserver cluster in one process (zoo/harness.py) over a toy model.

The toy model's next token is a hash of (model, all ids), so any lost, doubled or misplaced token shows in what
follows.
"""
from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import torch

from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec
from tokenrouter.core import SamplingParams
from tokenrouter.engine.base import EngineCounters, EngineOutput, ModelInfo, Row
from tokenrouter.engine.paged import PagedEngine
from tokenrouter.engine.pages import PagePool
from tokenrouter.interface import BaseRouter, StepResult
from zoo.harness import InProcessCluster
from zoo.walk import Record

VOCAB, EOS = 64, 0


def toss(*parts: int) -> int:
    data = b"".join(part.to_bytes(8, "little", signed=True) for part in parts)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def toy_token(model: int, ids: Sequence[int]) -> int:
    """EOS about once in 40 tokens."""
    draw = toss(model, *ids)
    return EOS if draw % 40 == 0 else 1 + draw % (VOCAB - 1)


class ToyEngine(PagedEngine):
    device, asynchronous = torch.device("cpu"), False

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
            for end in range(len(table.ids) + 1 - row.num_logits, len(table.ids) + 1):
                out = torch.zeros(VOCAB)
                out[toy_token(self.model, table.ids[:end])] = 9.0
                logits.append(out)
        self.counters.steps += 1
        stacked = torch.stack(logits) if logits else torch.zeros(0, VOCAB)
        return EngineOutput(stacked, torch.zeros(len(logits), 4), lambda: 0.0)

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


class ToyCluster(InProcessCluster):
    def __init__(self, algorithms: list[AlgorithmSpec], *, models: int, pages: int, seed: int,
                 batching: BatchingSpec | None = None, chunk_tokens: int = 8, max_batch: int = 64) -> None:
        super().__init__(algorithms, [ToyEngine(i, pages) for i in range(models)], seed=seed, batching=batching,
                         chunk_tokens=chunk_tokens, max_batch=max_batch, eos_token_ids=frozenset({EOS}))

    def submit(self, prompt: list[int], max_tokens: int, algorithm: str = "toy") -> str:  # type: ignore[override]
        return super().submit(prompt, SamplingParams(0, max_tokens), algorithm)

    def output(self, rid: str) -> tuple[list[int], list[int], str | None]:
        record = self.collect(rid, Record([], SamplingParams(0, 1)))
        return record.token_ids, record.token_models, record.finish_reason
