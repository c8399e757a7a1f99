"""The embedded engine: a causal LM on one device over an own paged KV pool."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tokenrouter.core import InputError
from tokenrouter.engine.base import EngineCounters, EngineOutput, ModelInfo, Row, Score
from tokenrouter.engine.clock import Stopwatch
from tokenrouter.engine.graphs import CudaGraphs, GraphBackend, ScoreGraphs
from tokenrouter.engine.options import FIELD, check_device
from tokenrouter.engine.paged import PagedEngine
from tokenrouter.engine.pages import PagePool
from tokenrouter.engine.torch import load, selftest
from tokenrouter.engine.torch.fast import FastRunner, unsupported
from tokenrouter.engine.torch.graphs import StepGraphs
from tokenrouter.engine.torch.hf import HFRunner
from tokenrouter.engine.torch.kv import KVPool, bytes_per_token
from tokenrouter.engine.torch.lanes import Lanes
from tokenrouter.engine.torch.layout import build_batch
from tokenrouter.engine.torch.options import GraphRange, TorchOptions
from tokenrouter.engine.torch.runner import Runner
from tokenrouter.schema import convert


class TorchEngine(PagedEngine):
    """Implements tokenrouter.engine.base.Engine.

    `path`: a folder with config.json and safetensors, or a hub name (at `revision`); with load_format="dummy" the
    config is enough, and `seed` keys the weights. `capacity_tokens` is rounded down to whole pages. `graph_backend` is
    what records graphs, CUDA by default. `options`: those of TorchOptions. A model that over the pool differs from
    plain transformers is refused at load.
    """

    def __init__(
        self,
        path: str,
        *,
        revision: str | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        load_format: str = "auto",
        capacity_tokens: int = 16384,
        graph_backend: GraphBackend | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        settings = convert(options, TorchOptions, at=FIELD)
        settings.check("*", path, device if graph_backend is None else "cuda")  # such a backend stands for CUDA's
        num_pages = settings.pages(capacity_tokens)
        self.device = torch.empty(0, device=check_device(device)).device  # with its index
        self.asynchronous = self.device.type != "cpu"
        self._page_size, self._prefix_cache = settings.page_size, settings.prefix_cache
        self._with_lanes = settings.lanes and self.device.type == "cpu" and graph_backend is None
        model = load.load_model(
            path, revision=revision, dtype=dtype, device=self.device, load_format=load_format, seed=seed)
        config = model.config.get_text_config()
        expected = selftest.references(model)
        name = Path(path).name
        self._runner = _make_runner(settings.runner, model, name)
        self._graphs: StepGraphs | None = None
        self._score_sizes: tuple[int, ...] = ()
        self.info = ModelInfo(
            name=name,
            vocab_size=expected[0].logits.shape[1],
            hidden_size=expected[0].hidden.shape[1],
            context_length=load.context_length(config),
            eos_token_ids=load.eos_token_ids(model),
            num_params=self._runner.num_params,
            dtype=dtype,
            weight_bytes=self._runner.weight_bytes,
            bytes_per_token=bytes_per_token(self._runner.shapes, load.DTYPES[dtype]),
            engine="torch",
        )
        # The self-test runs in a pool of its own: it does not depend on how small the real one is, and fails first.
        self._make_pool(2 * -(-selftest.MAX_LENGTH // self._page_size))
        selftest.check(self, expected)
        self._make_pool(num_pages)
        sizes = settings.graphs
        if sizes == "auto" and self.device.type == "cuda" and isinstance(self._runner, FastRunner):
            sizes = GraphRange()
        if isinstance(sizes, GraphRange):
            self._record(sizes, graph_backend or CudaGraphs(self.device), expected)

    @torch.inference_mode()
    def _record(self, sizes: GraphRange, backend: GraphBackend, expected: list[selftest.Reference]) -> None:
        """Record the graphs, and put them to the self-test too where the pool has room for it."""
        self._graphs = StepGraphs(self._runner, self._kv, self._pool, self.device, sizes, self.info.context_length,
                                  backend, self.counters)
        self._score_sizes, self._graph_backend = sizes.batch_sizes, backend
        if self._pool.num_pages >= 2 * -(-selftest.MAX_LENGTH // self._page_size):
            selftest.check(self, expected)
        self._pool.flush()
        self.counters.reset()

    def _make_pool(self, num_pages: int) -> None:
        self.counters = EngineCounters()
        dtype = load.DTYPES[self.info.dtype]
        lanes: Lanes | None = None
        if self._with_lanes:
            length = min(num_pages * self._page_size, self.info.context_length)
            lanes = Lanes.fitting(self._runner.shapes, length, dtype)
        self._kv = KVPool(self._runner.shapes, num_pages, self._page_size, dtype, self.device, lanes)
        self._pool = PagePool(
            num_pages, self._page_size, prefix_cache=self._prefix_cache, copy=self._kv.copy_page, counters=self.counters
        )

    @torch.inference_mode()
    def step(self, rows: Sequence[Row]) -> EngineOutput:
        watch = Stopwatch(self.device)
        output = None if self._graphs is None else self._graphs.step(rows)
        if output is None:
            batch = build_batch(rows, self._pool, self.device, self._kv.lanes, self._kv.pages)
            watch = Stopwatch(self.device)
            output = self._runner.forward(batch, self._kv)
            self.counters.eager_steps += 1
        finish = watch.stop()
        for row in rows:
            self._pool.append(row.rid, row.token_ids)
        self.counters.steps += 1
        self.counters.tokens += sum(len(row.token_ids) for row in rows)
        return EngineOutput(*output, finish)

    def free(self, rid: str, ids: Sequence[int] = ()) -> None:
        super().free(rid, ids)
        if self._kv.lanes is not None:
            self._kv.lanes.drop(rid)

    def graphed(self, score: Score) -> Score:
        if not self._score_sizes:
            return score
        return ScoreGraphs(score, self._score_sizes, self._graph_backend, self.counters)

    @torch.inference_mode()
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._runner.embed(token_ids)


def _make_runner(kind: str, model: Any, name: str) -> Runner:
    reason = unsupported(model)
    if kind == "hf" or (kind == "auto" and reason):
        return HFRunner(model, name)
    if reason:
        raise InputError(f"{FIELD}.runner=fast: model {name} has {reason}; allowed is auto, hf")
    return FastRunner(model)
