"""CITER's network and router: sizes, folding, and what it looks at."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.zoo.trained import CITER, HIDDEN, citer_network, pair, result
from zoo.citer.network import ConfidenceNetwork, FoldedNetwork


@pytest.mark.parametrize(("hidden", "count"), [(1536, 9_449_473), (1024, 4_202_497), (64, 16_897)])
def test_number_of_parameters(hidden: int, count: int) -> None:
    with torch.device("meta"):
        made = sum(parameter.numel() for parameter in ConfidenceNetwork(hidden).parameters())
    assert made == count == 4 * hidden**2 + 8 * hidden + 1


def test_batch_norm_makes_training_differ_from_inference() -> None:
    made, hidden = citer_network(), torch.randn(6, HIDDEN)
    inference = made(hidden)
    for layer in made:
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    made.train()
    assert (made(hidden) - inference).abs().max() > 0.1  # also without dropout
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        made(hidden[:1])
    assert inference.std() > 0.1


def test_folding_changes_nothing() -> None:
    full, hidden = citer_network(), torch.randn(7, HIDDEN)
    expected = full(hidden).squeeze(1)
    torch.testing.assert_close(FoldedNetwork(full)(hidden), expected, rtol=1e-4, atol=1e-4)


def test_logits_do_not_matter(tmp_path: Path) -> None:
    models, step = pair(), result(3)
    made = CITER.router(CITER.save(tmp_path / "router.safetensors", models), models)
    before = made.scores(step)[0]
    step.logits_output.next_token_logits.fill_(torch.nan)
    assert made.scores(step)[0].equal(before)
