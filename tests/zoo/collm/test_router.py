"""Co-LLM's deferral head and router: the score, and ends that the head cannot change."""
from __future__ import annotations

from pathlib import Path

import torch

from tests.scripted import dummy
from tests.zoo.algorithms import single
from tests.zoo.trained import COLLM, HIDDEN, decode, pair, result
from zoo import weights
from zoo.collm.router import KIND


def test_the_score_is_the_sigmoid_of_one_product(tmp_path: Path) -> None:
    models, step = pair(), result(4)
    file = COLLM.save(tmp_path / "router.safetensors", models)
    tensors, _ = weights.load(file, KIND)
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {"vector": [HIDDEN]}
    expected = (step.logits_output.hidden_states * tensors["vector"]).sum(dim=1).sigmoid()
    torch.testing.assert_close(COLLM.router(file, models).scores(step)[0], expected, rtol=1e-5, atol=1e-6)


def test_an_end_that_the_base_proposes_can_be_deferred(tmp_path: Path) -> None:
    large = pair()[1]
    ending = dummy(1, eos_token_id=12)  # what the base says first
    assert decode(single(), [ending]).finish_reason == "stop"
    path = COLLM.save(tmp_path / "router.safetensors", (ending, large), {"vector": torch.zeros(HIDDEN)})
    assert decode(COLLM.algorithm(path, 0.5), [ending, large]).token_ids == [12]  # 0.5 is not above 0.5
    deferred = decode(COLLM.algorithm(path, 0.49), [ending, large])
    assert deferred.token_ids == decode(single(), [large]).token_ids
    assert deferred.discarded == len(deferred.token_ids)
