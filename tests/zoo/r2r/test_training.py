"""Fitting the network, resuming, class weights and the threshold."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenrouter.core import InputError
from zoo.r2r.label import DIVERGENT, NEUTRAL, SAME, Rows
from zoo.r2r.train import Options, pick_threshold, pos_weight, train_network

OPTIONS = Options(out="", width=16, batch_size=64, epochs=6, seed=3, lr=1e-2)
EMBEDDINGS = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))


def rows(count: int = 1500) -> tuple[Rows, torch.Tensor]:
    """Divergent where the hidden state's first number is large, neutral where the second is; a sixth is held out."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(count, 8, generator=generator) * 3 + 2
    top = torch.randn(count, 4, generator=generator).sort(descending=True).values * 50
    kinds = torch.where(hidden[:, 0] > 5, DIVERGENT, torch.where(hidden[:, 1] > 4, NEUTRAL, SAME))
    tokens = torch.randint(0, 20, (count,), generator=generator)
    return Rows(hidden, top, tokens, kinds, torch.arange(count)), torch.arange(count) % 6 == 0


def test_divergent_rows_weigh_as_much_as_all_others() -> None:
    labels = torch.tensor([1.0, 0, 0, 0, 0])
    assert pos_weight(labels).item() == 4
    assert pos_weight(labels, recall_factor=0.5).item() == 2


def test_learns_to_tell_divergent_from_neutral() -> None:
    data, held = rows(800)
    network, _ = train_network(data, held, EMBEDDINGS, OPTIONS)
    with torch.no_grad():
        scores = network(features(data, held))
    divergent, neutral = (scores[data.kinds[held] == kind] for kind in (DIVERGENT, NEUTRAL))
    assert divergent.mean() > 1 and neutral.mean() < -1


def features(data: Rows, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return data.hidden[at], data.top_logits[at], EMBEDDINGS[data.token_ids[at]]


def test_training_that_was_interrupted_ends_in_the_same_weights(tmp_path: Path) -> None:
    data, held = rows(400)
    network, whole = train_network(data, held, EMBEDDINGS, OPTIONS)
    state = tmp_path / "training.safetensors"
    half = Options(out="", width=16, batch_size=64, epochs=2, seed=3, lr=1e-2)
    train_network(data, held, EMBEDDINGS, half, state)
    again, resumed = train_network(data, held, EMBEDDINGS, OPTIONS, state)
    assert resumed == whole
    expected = network.state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in again.state_dict().items())


def test_the_best_epoch_is_kept_and_patience_ends_it() -> None:
    data, held = rows(400)
    noise = data._replace(kinds=data.kinds[torch.randperm(400, generator=torch.Generator().manual_seed(5))])
    long = Options(out="", width=16, batch_size=64, epochs=200, patience=3, lr=1e-2)
    network, fit = train_network(noise, held, EMBEDDINGS, long)
    until = Options(out="", width=16, batch_size=64, epochs=fit.epoch + 1, patience=3, lr=1e-2)
    assert fit.epoch < 190
    best = train_network(noise, held, EMBEDDINGS, until)[0].state_dict()
    assert all(tensor.equal(best[name]) for name, tensor in network.state_dict().items())


def test_rows_of_one_label_are_refused() -> None:
    data, held = rows(100)
    with pytest.raises(InputError, match="all their rows have one label"):
        train_network(data._replace(kinds=torch.zeros(100, dtype=torch.long)), held, EMBEDDINGS, OPTIONS)


def test_threshold_is_the_largest_with_the_recall() -> None:
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 0.95, 0.65])
    labels = torch.tensor([1, 1, 1, 1, 1, 0, 0])
    for recall, threshold in ((0.2, 0.9), (0.6, 0.7), (0.61, 0.6), (0.95, 0.5), (1.0, 0.5), (0.01, 0.9)):
        assert pick_threshold(scores, labels, recall) == pytest.approx(threshold)
    with pytest.raises(InputError, match="holds no divergent proposal"):
        pick_threshold(scores, torch.zeros(7), 0.5)
