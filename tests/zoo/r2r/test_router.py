"""R2R's network and router: sizes, folding, infinite logits, and what is stored."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.zoo.trained import HIDDEN, R2R, VOCAB, context, pair, r2r_network, result
from zoo import weights
from zoo.r2r.network import Features, FoldedNetwork, R2RNetwork, Sizes, top_logits
from zoo.r2r.router import KIND


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return pair()


@pytest.fixture(scope="module")
def file(models: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    return R2R.save(tmp_path_factory.mktemp("r2r") / "router.safetensors", models)


@pytest.mark.parametrize(("hidden_size", "parameters"), [
    (1536, 56_302_081), (1024, 54_677_505), (2048, 57_926_657), (2560, 59_551_233),
])
def test_parameter_counts_of_the_paper(hidden_size: int, parameters: int) -> None:
    with torch.device("meta"):
        network = R2RNetwork(Sizes(hidden_size))
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_folding_changes_nothing() -> None:
    full, embeddings = r2r_network(), torch.randn(VOCAB, HIDDEN)
    tokens, logits, hidden = torch.randint(0, VOCAB, (7,)), torch.randn(7, VOCAB) * 5, torch.randn(7, HIDDEN)
    folded = FoldedNetwork(full, embeddings)
    expected = full(Features(hidden, top_logits(logits, 10), embeddings[tokens]))
    assert expected.std() > 0.05
    torch.testing.assert_close(folded(tokens, logits, hidden), expected, rtol=1e-4, atol=1e-4)


def test_infinite_logits_do_no_harm(file: str, models: tuple[Any, Any]) -> None:
    step = result(3)
    step.logits_output.next_token_logits[0, 5:] = -torch.inf
    scores = R2R.router(file, models).scores(step)[0]
    assert scores[0].isfinite() and 0 <= scores[0] <= 1


def test_the_fingerprint_survives_another_precision(models: tuple[Any, Any]) -> None:
    table = models[0].get_input_embeddings().weight.detach().bfloat16()
    stored = context(models[0])._replace(embed=lambda ids: table[ids])
    loaded = stored._replace(embed=lambda ids: table.float()[ids])
    assert weights.fingerprint(stored) == weights.fingerprint(loaded)


def test_the_embedding_table_is_not_stored(file: str) -> None:
    tensors, _ = weights.load(file, KIND)
    assert not [name for name, tensor in tensors.items() if VOCAB in tensor.shape]
