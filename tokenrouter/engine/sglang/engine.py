"""The SGLang engine: tokenrouter's loop over SGLang's batches, model runner, KV pools and prefix cache."""
from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tokenrouter.engine.base import Capacity, EngineCounters, EngineOutput, ModelInfo, Row, Score
from tokenrouter.engine.clock import Stopwatch
from tokenrouter.engine.graphs import CudaGraphs, ScoreGraphs
from tokenrouter.engine.memory import DTYPE_BYTES, footprint
from tokenrouter.engine.options import FIELD
from tokenrouter.engine.pages import common_prefix
from tokenrouter.engine.sglang.leader import build
from tokenrouter.engine.sglang.options import SglangOptions
from tokenrouter.engine.sglang.runtime import Append, Options
from tokenrouter.schema import convert

SCORE_SIZES = (1, 2, 4, 8, 16, 32)  # batch sizes that routers' scores are recorded for


@dataclass(slots=True)
class _Sequence:
    req: Any  # SGLang's
    room: int = 0  # tokens that were promised to it beyond its KV
    row: bool = False  # whether a row of SGLang's token table was


class SglangEngine:
    """Implements tokenrouter.engine.base.Engine; one a process.

    `capacity_tokens`: KV room. `options`: those of SglangOptions.
    """

    def __init__(
        self, path: str, *, revision: str | None = None, device: str = "cpu", dtype: str = "float32",
        load_format: str = "auto", capacity_tokens: int = 16384, **options: Any,
    ) -> None:  # fmt: skip
        settings = convert(options, SglangOptions, at=FIELD)
        settings.check("*", path, device)
        tp_size = settings.tp_size
        self._runtime = runtime = build(Options(
            path=path, revision=revision, device=device, dtype=dtype, load_format=load_format,
            capacity_tokens=settings.pages(capacity_tokens), max_sequences=settings.max_sequences,
            prefix_cache=settings.prefix_cache, server_args=settings.server_args or {}), tp_size)
        self.device, self.asynchronous = runtime.device, runtime.device.type != "cpu"
        whole, weights, params = footprint(path, dtype, revision=revision), runtime.weight_bytes, runtime.num_params
        if tp_size > 1:  # these are of a shard
            weights, params = whole.weight_bytes, whole.weight_bytes // DTYPE_BYTES[dtype]
        self.info = ModelInfo(
            name=Path(path).name, vocab_size=runtime.vocab_size, hidden_size=runtime.hidden_size,
            context_length=runtime.context_length, eos_token_ids=runtime.eos_token_ids,
            num_params=params, dtype=dtype, weight_bytes=weights,
            bytes_per_token=whole.bytes_per_token, engine="sglang")
        self.counters = EngineCounters()
        self._prefix_cache = settings.prefix_cache
        self._sequences: dict[str, _Sequence] = {}
        self._promised_tokens = self._promised_rows = 0

    def capacity(self) -> Capacity:
        return Capacity(self._runtime.capacity, self._free_tokens(), 1)

    def _free_tokens(self) -> int:
        return self._runtime.free_tokens - self._promised_tokens

    def open(self, rid: str, ids: Sequence[int]) -> int:
        if rid in self._sequences:
            raise ValueError(f"sequence {rid!r} is open already")
        sequence = self._sequences[rid] = _Sequence(self._runtime.open(rid))
        if not self._prefix_cache:
            return 0
        self.counters.prefix_lookups += 1
        length = self._runtime.adopt(sequence.req, ids[:-1])
        if self._free_tokens() < 0:  # what it adopted was to make the room that others were promised
            self._runtime.truncate(sequence.req, 0)
            length = 0
        self.counters.prefix_hit_tokens += length
        return length

    def allocate(self, rid: str, num_tokens: int) -> bool:
        """A promise: SGLang's batch takes the slots when it is made, and nobody else can have them until then."""
        sequence = self._sequence(rid)
        more = max(0, num_tokens - sequence.room)
        row = not sequence.row and not self._runtime.holds_row(sequence.req)
        if more > self._free_tokens() or row > self._runtime.free_rows - self._promised_rows:
            return False
        self._promise(sequence, more, row)
        return True

    def _promise(self, sequence: _Sequence, tokens: int, row: int) -> None:
        sequence.room += tokens
        sequence.row = bool(sequence.row + row)
        self._promised_tokens += tokens
        self._promised_rows += row

    @torch.inference_mode()
    def step(self, rows: Sequence[Row]) -> EngineOutput:
        appends = []
        for row in rows:
            sequence, count = self._sequence(row.rid), len(row.token_ids)
            if not 0 <= row.num_logits <= count or not count:
                raise ValueError(f"{row.rid}: {row.num_logits} logits of {count} tokens")
            if count > sequence.room:
                raise ValueError(f"{row.rid}: no room was allocated for {count} tokens behind {self.kv_len(row.rid)}")
            appends.append(Append(sequence.req, row.token_ids, row.num_logits))
        for row in rows:
            sequence = self._sequences[row.rid]
            self._promise(sequence, -len(row.token_ids), -sequence.row)
        cached = self._runtime.cached_tokens
        watch = Stopwatch(self.device)
        logits, hidden = self._runtime.forward(appends)
        finish = watch.stop()
        tokens = sum(len(row.token_ids) for row in rows)
        self.counters.steps += 1
        if not self._runtime.replayed:
            self.counters.eager_steps += 1
        elif tokens == len(rows):
            self.counters.graph_decodes += 1
        else:
            self.counters.graph_extends += 1
        self.counters.tokens += tokens
        self.counters.pages_allocated += tokens
        self.counters.pages_evicted += cached - self._runtime.cached_tokens
        return EngineOutput(logits, hidden, finish)

    @torch.inference_mode()
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._runtime.embed(token_ids)

    def truncate(self, rid: str, length: int) -> None:
        sequence = self._sequence(rid)
        if not 0 <= length <= self.kv_len(rid):
            raise ValueError(f"truncate {rid!r} to {length}: allowed is 0 to {self.kv_len(rid)}")
        self._promise(sequence, -sequence.room, -sequence.row)
        self._runtime.truncate(sequence.req, length)

    def free(self, rid: str, ids: Sequence[int] = ()) -> None:
        sequence = self._sequence(rid)
        self._promise(sequence, -sequence.room, -sequence.row)
        held = self._runtime.ids(sequence.req)
        committed = common_prefix(held, array("q", ids)) if self._prefix_cache else 0
        self._runtime.release(sequence.req, committed)
        del self._sequences[rid]

    def kv_len(self, rid: str) -> int:
        return len(self._runtime.ids(self._sequence(rid).req))

    def graphed(self, score: Score) -> Score:
        if self.device.type != "cuda":
            return score
        return ScoreGraphs(score, SCORE_SIZES, CudaGraphs(self.device), self.counters)

    def check(self, live: Iterable[str]) -> None:
        live = set(live)
        assert set(self._sequences) == live, f"open sequences {sorted(self._sequences)}, live ones {sorted(live)}"
        rooms = sum(sequence.room for sequence in self._sequences.values())
        assert rooms == self._promised_tokens <= self._runtime.free_tokens, "more room was promised than there is"
        self._runtime.check([sequence.req for sequence in self._sequences.values()])

    def flush_cache(self) -> None:
        self._runtime.flush()

    def _sequence(self, rid: str) -> _Sequence:
        try:
            return self._sequences[rid]
        except KeyError:
            raise KeyError(f"sequence {rid!r} is not open") from None
