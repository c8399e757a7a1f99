from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scripted import dummy
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.engine import load_engine
from tokenrouter.engine.routers import context_of
from tokenrouter.interface import Algorithm
from zoo import weights
from zoo.offline import Offline
from zoo.query_level.network import WinRate
from zoo.query_level.router import KIND
from zoo.query_level.train import Options, Rows, prompt_states, train_network
from zoo.reference import Reference, compare
from zoo.walk import Record

VOCAB = 64


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return [dummy(seed, VOCAB, 0, hidden_size=size) for seed, size in ((0, 32), (1, 48))]


@pytest.fixture(scope="module")
def folders(models: list[Any], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    made = []
    for model in models:
        folder = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder)
        made.append(str(folder))
    return made


@pytest.fixture(scope="module")
def engines(folders: list[str]) -> list[Any]:
    return [load_engine("torch", path=folder, capacity_tokens=2048) for folder in folders]


@pytest.fixture(scope="module")
def file(engines: list[Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A router of random weights for these models."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("router") / "router.safetensors"
    about = {"kind": KIND, "width": 8, "models": {
        role: weights.describe(role, context_of(engine))
        for role, engine in zip(("small", "large"), engines, strict=True)}}
    weights.save(path, WinRate(32, 8, 0.0).state_dict(), about)
    return str(path)


def algorithm(file: str, threshold: Any) -> Algorithm:
    path = "zoo.query_level.router"
    return Algorithm("query_level", ("small", "large"), {
        "small": {"_target_": f"{path}.QuerySmall", "weights": file, "threshold": threshold},
        "large": {"_target_": f"{path}.QueryLarge", "weights": file}}, "small")


def requests() -> list[Record]:
    generator = torch.Generator().manual_seed(5)
    prompts = torch.randint(1, VOCAB, (24, 9), generator=generator).tolist()
    return [Record(prompt, SamplingParams(i, 12)) for i, prompt in enumerate(prompts)]


def middle(engines: list[Any], file: str) -> float:
    tensors, _ = weights.load(file, KIND)
    network = WinRate(32, 8, 0.0)
    network.load_state_dict(tensors)
    with torch.no_grad():
        states = prompt_states(engines[0], [record.prompt_ids for record in requests()])
        return float(network(states).sigmoid().sort().values[11:13].mean())


def test_one_model_writes_the_whole_answer(engines: list[Any], models: list[Any], file: str) -> None:
    threshold = middle(engines, file)
    records = Offline(algorithm(file, threshold), engines).decode(requests())
    assert all(len(set(record.token_models)) == 1 for record in records)
    assert sum(record.token_models[0] for record in records) == 12  # half of them, as the threshold is in the middle
    assert all(record.handoffs == record.token_models[0] == record.discarded for record in records)
    reference = Reference(algorithm(file, threshold), models, VOCAB)
    for record in records:
        assert compare(record, reference.decode(record.prompt_ids, record.sampling)).kind == "equal"


@pytest.mark.parametrize(("threshold", "role"), [("never", 0), ("always", 1), (0.0, 1), (1.0, 0)])
def test_the_ends_are_the_models_alone(engines: list[Any], file: str, threshold: Any, role: int) -> None:
    records = Offline(algorithm(file, threshold), engines).decode(requests())
    assert {model for record in records for model in record.token_models} == {role}


def test_a_request_may_bring_its_own_threshold(engines: list[Any], file: str) -> None:
    asked = requests()
    for record in asked[::2]:
        record.params["threshold"] = "always"
    records = Offline(algorithm(file, "never"), engines).decode(asked)
    assert [set(record.token_models) for record in records] == [{1}, {0}] * 12


def test_other_models_are_refused(engines: list[Any], file: str) -> None:
    with pytest.raises(InputError, match=r"models\.small: its hidden_size is 48; allowed is small"):
        Offline(algorithm(file, 0.5), engines[::-1])


def test_states_of_prompts_are_the_models(engines: list[Any], models: list[Any]) -> None:
    prompt = requests()[0].prompt_ids
    with torch.no_grad():
        hidden = models[0](torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0, -1]
    torch.testing.assert_close(prompt_states(engines[0], [prompt])[0], hidden, atol=1e-4, rtol=1e-4)


def separable(count: int) -> Rows:
    torch.manual_seed(0)
    hidden = torch.randn(count, 6) * 3 + 1
    return Rows(hidden, hidden[:, 2] > 1.5, torch.arange(count))


def test_training_finds_what_decides(tmp_path: Path) -> None:
    rows = separable(600)
    held = rows.problems >= 500
    network, fitted = train_network(rows, held, Options(out="", epochs=60, lr=3e-3, width=32))
    with torch.no_grad():
        said = network(rows.hidden[held]) > 0
    assert (said == rows.wins[held]).float().mean() > 0.95 and fitted.loss < 0.2
    again, _ = train_network(rows, held, Options(out="", epochs=60, lr=3e-3, width=32))
    both = zip(network.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in both)


def test_labels_of_one_kind_and_options_out_of_range_are_refused() -> None:
    rows = separable(20)._replace(wins=torch.ones(20))
    with pytest.raises(InputError, match="problems=1500: one model wins them all"):
        train_network(rows, rows.problems >= 15, Options(out=""))
    for options, message in ((Options(out="", width=0), "width=0: allowed is >= 1"),
                             (Options(out="", dropout=1.0), r"dropout=1.0: allowed is a number in \[0, 1\)")):
        with pytest.raises(InputError, match=message):
            options.check()
