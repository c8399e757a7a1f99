"""Graphs: a computation recorded once over static buffers, and replayed without Python or launches one by one."""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from tokenrouter.engine.base import EngineCounters, Score

Outputs = tuple[torch.Tensor, ...]


class GraphBackend(Protocol):
    """What records: CUDA, or in tests something that calls again and notes it."""

    def capture(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """`call` reads and writes static tensors. Returns what replays it, each time into the same output tensors."""


class CudaGraphs:
    """Graphs that share one pool of memory: an output is good until another one is replayed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def capture(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        stream: Any = torch.cuda.Stream
        current, side = torch.cuda.current_stream(self._device), stream(self._device)
        side.wait_stream(current)
        with torch.cuda.stream(side):  # libraries allocate their workspaces in the first call
            call()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.graph(graph, pool=self._pool):
            outputs = call()
        self._pool = graph.pool()

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


def smallest(sizes: Sequence[int], least: int) -> int | None:
    """The first of the rising `sizes` that is not below `least`."""
    at = bisect_left(sizes, least)
    return sizes[at] if at < len(sizes) else None


class ScoreGraphs:
    """A router's `score` from one graph for each batch size, recorded when it is first needed; eager beyond.

    A score is a pure function row by row, so that rows beyond the batch may hold anything.
    """

    def __init__(self, score: Score, sizes: Sequence[int], backend: GraphBackend, counters: EngineCounters) -> None:
        self._score, self._sizes, self._backend, self._counters = score, sizes, backend, counters
        self._graphs: dict[Any, _ScoreGraph] = {}

    def __call__(self, tensors: Any, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        count = len(tensors[0])
        size = smallest(self._sizes, count)
        if size is None:
            self._counters.eager_scores += 1
            return self._score(tensors, params)
        inputs = [*tensors, *params.values()]
        key = (size, *params, *(None if value is None else (value.dtype, *value.shape[1:]) for value in inputs))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = _ScoreGraph(self._score, tensors, params, size, self._backend)
        self._counters.graph_scores += 1
        return graph.replay(inputs)[:count].clone()


class _ScoreGraph:
    def __init__(self, score: Score, tensors: Any, params: Mapping[str, torch.Tensor], size: int,
                 backend: GraphBackend) -> None:
        own = [None if value is None else value.new_zeros(size, *value.shape[1:]) for value in tensors]
        own_params = {name: value.new_zeros(size, *value.shape[1:]) for name, value in params.items()}
        self._inputs = [*own, *own_params.values()]
        static = type(tensors)._make(own)
        self._replay = backend.capture(lambda: (score(static, own_params),))

    def replay(self, inputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
        for buffer, value in zip(self._inputs, inputs, strict=True):
            if buffer is not None and value is not None:
                buffer[: len(value)].copy_(value, non_blocking=True)
        return self._replay()[0]
