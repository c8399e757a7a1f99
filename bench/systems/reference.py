"""system=reference: the reference decoder as a service, one request at a time, each answer in one piece."""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from bench.systems import Service
from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import FinishReason, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.engine.torch.load import context_length, eos_token_ids
from tokenrouter.server.frontend import EndEvent, Event, TokenEvent
from zoo.reference import Reference
from zoo.walk import Record


class ReferenceService:
    """Decodes on a thread of its own, so that the driver's clock and Ctrl-C go on."""

    def __init__(self, spec: ClusterSpec) -> None:
        torch.set_num_threads(spec.hardware.threads)
        disable_progress_bar()  # the driver has its own
        self._reference = Reference.load(
            spec.algorithms[0].build(), [m.path for m in spec.models], [m.revision for m in spec.models])
        self.models = [_info(m.name, model) for m, model in zip(spec.models, self._reference.models, strict=True)]
        self._waiting: queue.SimpleQueue[tuple[str, list[int], SamplingParams] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        self._aborted: set[str] = set()
        self._count = 0
        threading.Thread(target=self._work, daemon=True, name="reference").start()

    def submit(self, prompt_ids: Sequence[int], sampling: SamplingParams, algorithm: str) -> str:
        rid = f"r{self._count}"
        self._count += 1
        self._waiting.put((rid, list(prompt_ids), sampling))
        return rid

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self._aborted.add(rid)

    def poll(self, timeout_s: float) -> list[Event]:
        try:
            return self._done.get(timeout=timeout_s)
        except queue.Empty:
            return []

    def reset_stats(self) -> None:
        """Nothing is counted: there are no batches and no subservers."""

    def stats(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        self._waiting.put(None)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            rid, prompt_ids, sampling = item
            if rid in self._aborted:
                end = EndEvent(rid, FinishReason.ABORT, 0, 0, 0, None, time.perf_counter())
                self._done.put([end])
                continue
            try:
                events = _events(rid, self._reference.decode(prompt_ids, sampling))
            except Exception as error:  # of one request: the others go on
                text = f"{type(error).__name__}: {error}"
                events = [EndEvent(rid, FinishReason.ABORT, 0, 0, 0, text, time.perf_counter())]
            self._done.put(events)


def _events(rid: str, record: Record) -> list[Event]:
    now, position = time.perf_counter(), 0
    events: list[Event] = []
    for role, run in groupby(zip(record.token_models, record.token_ids, strict=True), key=lambda pair: pair[0]):
        tokens = [token for _, token in run]
        events.append(TokenEvent(rid, position, tokens, role, now))
        position += len(tokens)
    reason = FinishReason(record.finish_reason or FinishReason.ABORT)
    return [*events, EndEvent(rid, reason, position, record.handoffs or 0, record.discarded or 0, None, now)]


def _info(name: str, model: PreTrainedModel) -> ModelInfo:
    params = sum(p.numel() for p in model.parameters())
    config = model.config.get_text_config()
    return ModelInfo(
        name=name, vocab_size=config.vocab_size, hidden_size=config.hidden_size,
        context_length=context_length(config), eos_token_ids=eos_token_ids(model), num_params=params,
        dtype="float32", weight_bytes=4 * params, bytes_per_token=0, engine="transformers")


@contextmanager
def serve(spec: ClusterSpec) -> Iterator[Service]:
    service = ReferenceService(spec)
    try:
        yield service
    finally:
        service.close()
