"""Many requests over several engines in one process, step by step: for labels, calibration and quality.

All roles take turns; in its turn a role makes one step for every request that it holds. No scheduler, no messages: what
becomes of a proposal is in zoo/walk.py.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from tokenrouter.core import Request, SamplingParams
from tokenrouter.engine.base import Engine, Row
from tokenrouter.engine.routers import context_of
from tokenrouter.interface import Algorithm, BaseRouter, LogitsOutput, StepResult
from tokenrouter.proposals import propose
from zoo.walk import Record, Walk

Progress = Callable[[int], None]
"""Told how many requests have finished since it was last told."""


def single(name: str = "model") -> Algorithm:
    """The algorithm of one model that never leaves."""
    return Algorithm(name, (name,), {name: {"_target_": "tokenrouter.interface.StayRouter"}}, name)


class Offline:
    """An algorithm over one engine a role; `batch_size` requests are under way at once."""

    def __init__(self, algorithm: Algorithm, engines: Sequence[Engine], *, batch_size: int = 48) -> None:
        self.algorithm, self.engines, self.batch_size = algorithm, engines, batch_size
        self.vocab_size = min(engine.info.vocab_size for engine in engines)
        self.context = min(engine.info.context_length for engine in engines)
        self.eos = frozenset(token for engine in engines for token in engine.info.eos_token_ids)
        self.routers: list[BaseRouter] = [algorithm.router(role) for role in algorithm.roles]
        for router, engine in zip(self.routers, engines, strict=True):
            router.setup(context_of(engine))

    @torch.inference_mode()
    def decode(self, records: Sequence[Record], progress: Progress | None = None) -> list[Record]:
        """Fill in the records, each of which has a prompt and sampling parameters; also returns them."""
        waiting = [
            Walk(self.algorithm, self.routers, record, eos=self.eos, context=self.context) for record in records
        ][::-1]
        live: dict[str, Walk] = {}
        opened: list[set[str]] = [set() for _ in self.engines]
        while waiting or live:
            while waiting and len(live) < self.batch_size:
                live[str(len(waiting))] = waiting.pop()
            for role, engine in enumerate(self.engines):
                here = {rid: walk for rid, walk in live.items() if walk.role == role}
                if here:
                    self._step(engine, here, opened[role])
                over = [rid for rid, walk in here.items() if walk.record.finish_reason]
                for rid in over:
                    ids = live.pop(rid).request.ids
                    for other, names in zip(self.engines, opened, strict=True):
                        if rid in names:
                            names.remove(rid)
                            other.free(rid, ids[: other.kv_len(rid)])
                if over and progress:
                    progress(len(over))
        return list(records)

    def _step(self, engine: Engine, here: dict[str, Walk], opened: set[str]) -> None:
        """One forward pass for the requests that a role holds, and what its router makes of the proposals."""
        rows = []
        for rid, walk in here.items():
            request = walk.request
            if rid not in opened:
                request.kv_len = engine.open(rid, request.ids)
                opened.add(rid)
            self._keep(engine, rid, request, request.length - request.num_logits)
            rows.append(Row(rid, request.span(request.kv_len, request.length), request.num_logits))
            request.kv_len = request.length
            reserve(engine, rows[-1])
        output = engine.step(rows)
        walks = list(here.values())
        router = walks[0].router
        proposals = propose([walk.request for walk in walks], [router] * len(walks), output.logits, self.vocab_size,
                            self.eos)
        logits, hidden = output.logits, output.hidden
        if len(walks) < len(logits):
            logits, hidden = logits[proposals.rows], hidden[proposals.rows]
        result = StepResult(proposals.tokens, LogitsOutput(logits, hidden if "hidden_states" in router.needs else None),
                            proposals.views, self.vocab_size)
        for (rid, walk), view, rejected, destination in zip(
                here.items(), proposals.views, proposals.rejected, router.route(result).tolist(), strict=True):
            request = walk.request
            self._keep(engine, rid, request, request.length + len(view.proposal) - 1)
            walk.reject(rejected)
            walk.settle(view, destination)
            self._keep(engine, rid, request, request.length)

    @staticmethod
    def _keep(engine: Engine, rid: str, request: Request, length: int) -> None:
        """Of the sequence's KV no more than that, nor than is still the request's."""
        request.kv_len = min(request.kv_len, length)
        if engine.kv_len(rid) > request.kv_len:
            engine.truncate(rid, request.kv_len)


def greedy(prompts: Sequence[Sequence[int]], max_tokens: int, seed: int = 0) -> list[Record]:
    """Records to be decoded greedily; request i has the seed `seed` + i, which routers that draw use."""
    return [Record(list(ids), SamplingParams(seed + i, max_tokens)) for i, ids in enumerate(prompts)]


def continued(
    offline: Offline, starts: Sequence[tuple[Sequence[int], Sequence[int]]], max_tokens: int, eos: Collection[int]
) -> list[Record]:
    """Answers to prompts whose first tokens are given, decoded greedily to their end or to `max_tokens` in all.

    An answer whose given tokens end it, by the last being one of `eos` or by their number, is that.
    """
    records = [greedy([[*prompt, *first]], max_tokens - len(first))[0] for prompt, first in starts]
    offline.decode([
        record for record, (_, first) in zip(records, starts, strict=True)
        if first[-1] not in eos and len(first) < max_tokens
    ])
    return [
        Record(list(prompt), SamplingParams(0, max_tokens), token_ids=[*first, *record.token_ids])
        for record, (prompt, first) in zip(records, starts, strict=True)
    ]


@torch.inference_mode()
def teacher_forced(
    engine: Engine, records: Sequence[Record], *, batch_size: int = 16
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each record, in order: [T, V] logits that the model gives to the T output positions, and [T, H] hidden
    states that they come from."""
    for start in range(0, len(records), batch_size):
        rows = []
        for index, record in enumerate(records[start : start + batch_size]):
            ids = record.prompt_ids + record.token_ids[:-1]
            rid = f"forced-{index}"
            engine.open(rid, [ids[0]])  # one id: the cache has nothing to adopt, so that every position is computed
            rows.append(Row(rid, ids, len(record.token_ids)))
            reserve(engine, rows[-1])
        output = engine.step(rows)
        for row in rows:
            engine.free(row.rid)
        counts = [row.num_logits for row in rows]
        yield from zip(output.logits.split(counts), output.hidden.split(counts), strict=True)


def reserve(engine: Engine, row: Row) -> None:
    if not engine.allocate(row.rid, len(row.token_ids)):
        total = engine.capacity().total
        raise RuntimeError(f"a KV pool of {total} tokens is too small for this batch size")
