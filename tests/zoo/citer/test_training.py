"""Fitting CITER's network, on rows that need no models."""
from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from tokenrouter.core import InputError
from zoo.citer.label import SMALL_RIGHT, Rows
from zoo.citer.train import Options, train_network

OPTIONS = Options(out="", batch_size=64, epochs=6, seed=3, lr=1e-2)


def rows(count: int = 800) -> tuple[Rows, torch.Tensor]:
    """Fine where the hidden state's first number is small; a sixth is held out."""
    hidden = torch.randn(count, 8, generator=torch.Generator().manual_seed(1)) * 3 + 2
    none = torch.zeros(count, dtype=torch.long)
    fine = (hidden[:, 0] < 4).float()
    return Rows(hidden, none, none, none + SMALL_RIGHT, fine, torch.arange(count)), torch.arange(count) % 6 == 0


def test_confidence_is_high_where_the_small_model_is_fine() -> None:
    data, held = rows()
    network, fitted = train_network(data, held, OPTIONS)
    with torch.no_grad():
        confidence = network(data.hidden[held]).sigmoid().squeeze(1)
    fine = data.labels[held].bool()
    assert confidence[fine].mean() > 0.8 > 0.2 > confidence[~fine].mean()
    assert fitted.loss < 0.3 and not network.training


def test_training_that_was_interrupted_ends_in_the_same_weights(tmp_path: Path) -> None:
    data, held = rows(400)
    network, whole = train_network(data, held, OPTIONS)
    state = tmp_path / "training.safetensors"
    train_network(data, held, msgspec.structs.replace(OPTIONS, epochs=2), state)
    again, resumed = train_network(data, held, OPTIONS, state)
    assert resumed == whole
    expected = network.state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in again.state_dict().items())


def test_a_last_batch_of_one_row_is_left_out() -> None:
    data, _ = rows(65 + 10)
    train_network(data, torch.arange(75) >= 65, OPTIONS)


def test_rows_of_one_label_are_refused() -> None:
    data, held = rows(100)
    with pytest.raises(InputError, match="all their rows have one label"):
        train_network(data._replace(labels=torch.ones(100)), held, OPTIONS)


@pytest.mark.parametrize(("field", "value"), [
    ("relabel_threshold", 1.5), ("dropout", -0.1), ("relabel_rounds", -1), ("batch_size", 1), ("problems", 0),
    ("held_out", 1.0),
])
def test_options_out_of_range(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field}={value}: allowed is"):
        msgspec.structs.replace(OPTIONS, **{field: value}).check()
