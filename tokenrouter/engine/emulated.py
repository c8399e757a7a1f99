"""The emulated engine: a model of which nothing is real but the time that its steps take.

Pages, prefix cache, sequences and messages are those of any engine; only `step` differs. It waits for as long as the
model would compute, and answers logits that say nothing, so that requests end by max_tokens.
"""
from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tokenrouter.core import InputError
from tokenrouter.engine.base import EngineCounters, EngineOutput, ModelInfo, Row
from tokenrouter.engine.clock import EmulatedDevice
from tokenrouter.engine.options import FIELD, EngineOptions, Positive
from tokenrouter.engine.paged import PagedEngine
from tokenrouter.engine.pages import PagePool
from tokenrouter.schema import convert

VOCAB_SIZE = 32
_PRIORITY = 10  # of SCHED_FIFO: above what else may run in real time at the lowest priority
_Milliseconds = Annotated[float, Meta(gt=0, le=1e6)]  # finite


class EmulatedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long one model's steps take, L(b, k) in milliseconds.

    `latency_ms`: a number, or a table of [batch size, ms], linear between its entries and constant beyond them.
    `extend_ms_per_token`: for each token that a row appends beyond its first. `num_params` is only reported.
    """

    latency_ms: _Milliseconds | Annotated[list[tuple[Positive, _Milliseconds]], Meta(min_length=1)]
    extend_ms_per_token: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    num_params: Annotated[int, Meta(ge=0)] = 0

    def step_ms(self, batch: int, appended: int) -> float:
        """Of a step with `batch` rows that append `appended` tokens in all."""
        if isinstance(self.latency_ms, list):
            sizes, table = zip(*self.latency_ms, strict=True)
            base = float(np.interp(batch, sizes, table))
        else:
            base = self.latency_ms
        return base + self.extend_ms_per_token * (appended - batch)


class EmulatedOptions(EngineOptions, frozen=True, forbid_unknown_fields=True):
    """engine.options of engine=emulated; conf/engine/emulated.yaml explains them."""

    models: dict[str, Any]
    contention: Annotated[float, Meta(ge=1, le=1e6)] = 1.0
    realtime: bool = True
    context_length: Positive = 131072
    page_size: Positive = 16
    prefix_cache: bool = True

    @property
    def page(self) -> int:
        return self.page_size

    def check(self, role: str, path: str, device: str) -> None:
        self.model(path, role)

    def model(self, path: str, role: str = "*") -> EmulatedModel:
        """What is said of a role's model, checked. InputError if there is no word of it."""
        if path not in self.models:
            raise InputError(f"models.roles.{role}.path={path!r}: allowed is a model that {FIELD}.models describes: "
                             f"{', '.join(self.models)}")
        field = f"{FIELD}.models.{path}"
        model = convert(self.models[path], EmulatedModel, at=field)
        sizes = [size for size, _ in model.latency_ms] if isinstance(model.latency_ms, list) else []
        if sizes != sorted(set(sizes)):
            raise InputError(f"{field}.latency_ms={model.latency_ms!r}: allowed are rising batch sizes")
        return model


def parse_options(options: Mapping[str, Any]) -> EmulatedOptions:
    return convert(dict(options), EmulatedOptions, at=FIELD)


@cache
def _nothing(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and hidden states that say nothing, made once: whoever is given them leaves them as they are."""
    return torch.zeros(rows, VOCAB_SIZE), torch.zeros(rows, 1)


def _hurry() -> None:
    """Real-time priority for this process where it may have one: else steps end later where others run.

    Its other threads, by now those that carry messages, go before this one, which spins while they wait.
    """
    threads = Path("/proc/self/task")
    if threads.is_dir():
        for thread in map(int, os.listdir(threads)):
            priority = _PRIORITY if thread == threading.get_native_id() else _PRIORITY + 1
            with contextlib.suppress(OSError):
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))


class EmulatedEngine(PagedEngine):
    """Implements tokenrouter.engine.base.Engine.

    `path` names a model in `options["models"]`. Models with the same `device` slow each other down by
    `contention` while they run at once. `realtime`: this process gets a real-time priority where it may have one, so
    that waits end on time. `dtype` is only reported, and there is nothing for `load_format` to load.
    """

    def __init__(self, path: str, *, revision: str | None = None, device: str = "cpu", dtype: str = "float32",
                 load_format: str = "auto", capacity_tokens: int = 16384, **options: Any) -> None:
        settings = parse_options(options)
        self._model = settings.model(path)
        num_pages = settings.pages(capacity_tokens)
        self.device, self.asynchronous = torch.device("cpu"), True
        self.info = ModelInfo(
            name=path, vocab_size=VOCAB_SIZE, hidden_size=1, context_length=settings.context_length, eos_token_ids=(),
            num_params=self._model.num_params, dtype=dtype, weight_bytes=0, bytes_per_token=0, engine="emulated")
        self.counters = EngineCounters()
        self._pool = PagePool(
            num_pages, settings.page_size, prefix_cache=settings.prefix_cache, copy=lambda source, target: None,
            counters=self.counters)
        self._device = EmulatedDevice(device, settings.contention)
        if settings.realtime:
            _hurry()

    def step(self, rows: Sequence[Row]) -> EngineOutput:
        start = self._device.now()
        for row in rows:
            self._pool.append(row.rid, row.token_ids)
        appended = sum(len(row.token_ids) for row in rows)
        outputs = sum(row.num_logits for row in rows)
        self.counters.steps += 1
        self.counters.tokens += appended
        self._device.begin(start)
        seconds = self._model.step_ms(len(rows), appended) / 1e3
        return EngineOutput(*_nothing(outputs), partial(self._device.finish, start, seconds))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(token_ids), 1)
