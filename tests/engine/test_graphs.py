"""Steps from graphs: chosen, padded, replayed on the same buffers, with the tokens of the eager engine."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.engine.conftest import MakeModel
from tests.engine.drive import append, decode, decode_ragged, generate, make_prompts, plain_model
from tokenrouter.core import InputError
from tokenrouter.engine.base import EngineCounters, Row
from tokenrouter.engine.graphs import CudaGraphs, Outputs, ScoreGraphs
from tokenrouter.engine.torch.engine import TorchEngine

COUNT = 12
RANGE = {"batch_sizes": [1, 2, 4], "tokens": [1, 4, 8], "contexts": [32, 64], "max_tokens": 16}


class Recording:
    """Replays by calling again, into the tensors of the first call, as a graph does."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def capture(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        self.captures += 1
        outputs = call()

        def replay() -> Outputs:
            self.replays += 1
            for output, value in zip(outputs, call(), strict=True):
                output.copy_(value)
            return outputs

        return replay


def make(path: str, runner: str = "fast", **options: Any) -> tuple[TorchEngine, Recording]:
    backend = Recording()
    engine = TorchEngine(path, load_format="dummy", runner=runner, capacity_tokens=512, page_size=4,
                         graphs=options.pop("graphs", RANGE), graph_backend=backend, **options)
    backend.replays = 0  # those of the self-test
    return engine, backend


@pytest.mark.parametrize("runner", ["fast", "hf"])
def test_tokens_are_those_of_transformers(runner: str, make_model: MakeModel) -> None:
    path = make_model("qwen3")
    prompts = make_prompts((11, 3, 17, 40))
    engine, backend = make(path, runner)
    assert decode_ragged(engine, prompts, COUNT) == generate(plain_model(path), prompts, COUNT)
    counters = engine.counters
    assert counters.graph_decodes > 0 and counters.graph_extends > 0 and counters.eager_steps > 0
    assert counters.graph_decodes + counters.graph_extends == backend.replays
    assert backend.replays + counters.eager_steps == counters.steps


def test_shapes_are_recorded_once_and_within_the_limit(make_model: MakeModel) -> None:
    engine, backend = make(make_model("llama"))
    cells = [(rows, tokens) for rows in (1, 2, 4) for tokens in (1, 4, 8) if rows * tokens <= 16]
    assert backend.captures == 2 * len(cells)
    engine.open("a", [1])
    decode(engine, "a", [1], 20)
    assert backend.captures == 2 * len(cells)
    assert (engine.counters.graph_decodes, engine.counters.eager_steps) == (20, 0)


@pytest.mark.parametrize(("lengths", "held", "logits", "path"), [
    ((1, 1, 1), 5, 1, "graph_decodes"),  # of four rows, one is nobody's
    ((3,), 5, 1, "graph_extends"),
    ((1, 4), 5, 1, "graph_extends"),  # a decode next to an extend
    ((5, 5, 5), 5, 1, "eager_steps"),  # four rows of eight tokens are beyond max_tokens
    ((9,), 5, 1, "eager_steps"),  # more tokens than a graph has
    ((1,) * 5, 5, 1, "eager_steps"),  # more rows
    ((1,), 64, 1, "eager_steps"),  # more keys
    ((1,), 63, 1, "graph_decodes"),
    ((3,), 5, 2, "eager_steps"),  # logits of several positions
    ((3,), 5, 0, "graph_extends"),
])  # fmt: skip
def test_what_a_graph_covers(lengths: tuple[int, ...], held: int, logits: int, path: str,
                             make_model: MakeModel) -> None:
    folder = make_model("qwen3")
    engine, _ = make(folder)
    eager = TorchEngine(folder, load_format="dummy", runner="fast", capacity_tokens=512, page_size=4)
    prompts = make_prompts((held,) * len(lengths))
    suffixes = make_prompts(lengths, seed=9)
    outputs = []
    for system in (engine, eager):
        rows = []
        for n, (prompt, suffix) in enumerate(zip(prompts, suffixes, strict=True)):
            system.open(str(n), [*prompt, *suffix])
            append(system, str(n), prompt)
            assert system.allocate(str(n), len(suffix))
            rows.append(Row(str(n), suffix, logits))
        before = getattr(engine.counters, path)
        outputs.append(system.step(rows))
        if system is engine:
            assert getattr(engine.counters, path) == before + 1
    assert outputs[0].logits.shape == outputs[1].logits.shape
    assert torch.allclose(outputs[0].logits, outputs[1].logits, atol=1e-4)
    assert torch.allclose(outputs[0].hidden, outputs[1].hidden, atol=1e-4)


def test_an_output_outlives_the_next_step(make_model: MakeModel) -> None:
    engine, _ = make(make_model("qwen3"))
    engine.open("a", [1, 2])
    first = append(engine, "a", [1])
    kept = first.clone()
    append(engine, "a", [2])
    assert torch.equal(first, kept)


def test_padding_leaves_the_pool_alone(make_model: MakeModel) -> None:
    engine, _ = make(make_model("qwen3"))
    a, b = make_prompts((7, 9))
    engine.open("a", a)
    append(engine, "a", a)
    written = [layer[: 512].clone() for layer in engine._kv.layers]
    engine.open("b", b)
    append(engine, "b", b[:3])  # in a graph of four tokens
    pages = set(engine._pool["b"].pages)
    for layer, before in zip(engine._kv.layers, written, strict=True):
        changed = (layer[:512] != before).any(-1).nonzero().flatten().tolist()
        assert changed and {slot // 4 for slot in changed} <= pages


def test_rows_without_room_are_refused(make_model: MakeModel) -> None:
    engine, _ = make(make_model("qwen3"))
    engine.open("a", [1, 2])
    with pytest.raises(ValueError, match="no room was allocated"):
        engine.step([Row("a", [1])])


@pytest.mark.parametrize("graphs", ["on", {"tokens": []}, {"tokens": [2, 1]}, {"rows": [1]}, {"max_tokens": 0}])
def test_ranges_that_make_no_sense(graphs: Any, make_model: MakeModel) -> None:
    with pytest.raises(InputError, match="graphs"):
        make(make_model("qwen3"), graphs=graphs)


def test_a_cpu_has_no_graphs(make_model: MakeModel) -> None:
    path = make_model("qwen3")
    with pytest.raises(InputError, match="allowed on cpu is auto, off"):
        TorchEngine(path, load_format="dummy", graphs=RANGE)

    def score(tensors: Any, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return params["threshold"]

    assert TorchEngine(path, load_format="dummy", capacity_tokens=64).graphed(score) is score


class Tensors(NamedTuple):
    token_ids: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor | None


def score(tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
    value = tensors.logits.softmax(-1).gather(1, tensors.token_ids[:, None])[:, 0] * params["weight"]
    return value if tensors.hidden is None else value + tensors.hidden.mean(-1)


def test_scores_come_from_one_graph_a_size() -> None:
    backend, counters = Recording(), EngineCounters()
    graphed = ScoreGraphs(score, (1, 4), backend, counters)
    generator = torch.Generator().manual_seed(0)
    results = []
    for count in (1, 3, 4, 2, 5):
        for with_hidden in (False, True):
            hidden = torch.randn(count, 6, generator=generator) if with_hidden else None
            tensors = Tensors(torch.arange(count), torch.randn(count, 9, generator=generator), hidden)
            params = {"weight": torch.rand(count, generator=generator)}
            results.append((graphed(tensors, params), score(tensors, params)))
    for got, expected in results:
        assert torch.equal(got, expected)
    assert backend.captures == 4  # two sizes, with hidden states and without
    assert (counters.graph_scores, counters.eager_scores) == (8, 2)


def test_an_engine_with_graphs_has_them_for_scores(make_model: MakeModel) -> None:
    engine, _ = make(make_model("qwen3"))
    tensors = Tensors(torch.tensor([3]), torch.ones(1, 9), None)
    params = {"weight": torch.ones(1)}
    assert torch.equal(engine.graphed(score)(tensors, params), score(tensors, params))
    assert engine.counters.graph_scores == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnCuda:
    def test_replay_reads_the_buffers_anew(self) -> None:
        device = torch.device("cuda", 0)
        x = torch.ones(4, device=device)
        replay = CudaGraphs(device).capture(lambda: (x * 2,))
        x.fill_(3.0)
        assert replay()[0].tolist() == [6.0] * 4

    def test_tokens_are_those_of_transformers(self, make_model: MakeModel, tmp_path: Path) -> None:
        model = plain_model(make_model("qwen3"))
        model.save_pretrained(tmp_path)
        prompts = make_prompts((11, 3, 17, 40))
        engine = TorchEngine(str(tmp_path), device="cuda", capacity_tokens=512, page_size=4, graphs=RANGE)
        assert decode_ragged(engine, prompts, COUNT) == generate(model, prompts, COUNT)
        assert engine.counters.graph_decodes > 0 and engine.counters.graph_extends > 0
