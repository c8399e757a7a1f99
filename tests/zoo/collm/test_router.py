"""Co-LLM's deferral head and router: strictness, rows, tokens that the head cannot change, and its two ends."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scripted import dummy
from tests.zoo.algorithms import single
from tokenrouter.core import InputError, Request, SamplingParams
from tokenrouter.interface import Algorithm, LogitsOutput, ModelContext, RequestView, StepResult
from zoo import weights
from zoo.collm.router import KIND, CoLLMBase
from zoo.reference import Reference
from zoo.walk import Record

HIDDEN, VOCAB = 32, 64


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return dummy(1, eos_token_id=7), dummy(2, eos_token_id=7)


def context(model: Any) -> ModelContext:
    return ModelContext(torch.device("cpu"), VOCAB, HIDDEN, (), model.get_input_embeddings())


def save(path: Path, models: tuple[Any, Any], vector: torch.Tensor) -> str:
    described = {role: weights.describe(f"dummy-{role}", context(model))
                 for role, model in zip(("base", "large"), models, strict=True)}
    weights.save(path, {"vector": vector}, {"kind": KIND, "models": described})
    return str(path)


@pytest.fixture(scope="module")
def file(models: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    vector = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(0))
    return save(tmp_path_factory.mktemp("collm") / "router.safetensors", models, vector)


def router(file: str, models: tuple[Any, Any], **config: Any) -> CoLLMBase:
    made = CoLLMBase(weights=file, **config)
    made.setup(context(models[0]))
    return made


def result(rows: int, thresholds: list[float] | None = None) -> StepResult:
    torch.manual_seed(rows)
    params = [{"threshold": threshold} for threshold in thresholds] if thresholds else [{}] * rows
    views = [RequestView(Request("0", 0, 0, 0, 0, SamplingParams(0, 9), own, [1], 1, [1, 0]), 2) for own in params]
    output = LogitsOutput(torch.randn(rows, VOCAB), torch.randn(rows, HIDDEN))
    return StepResult(torch.randint(0, VOCAB, (rows,)), output, views)


def test_the_score_is_the_sigmoid_of_one_product(file: str, models: tuple[Any, Any]) -> None:
    step, (tensors, _) = result(4), weights.load(file, KIND)
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {"vector": [HIDDEN]}
    expected = (step.logits_output.hidden_states * tensors["vector"]).sum(dim=1).sigmoid()
    torch.testing.assert_close(router(file, models).scores(step)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_proposal_at_the_threshold_stays(file: str, models: tuple[Any, Any]) -> None:
    step = result(5)
    scores = router(file, models).scores(step)[0]
    assert len(set(scores.tolist())) == 5
    for threshold in scores.tolist():
        sent = router(file, models, threshold=threshold).route(step)
        assert sent.tolist() == (scores > threshold).long().tolist()
        assert sent[scores == threshold].tolist() == [0]


def test_never_always_and_thresholds_of_single_requests(file: str, models: tuple[Any, Any]) -> None:
    never, always = router(file, models, threshold="never"), router(file, models, threshold="always")
    assert never.route(result(3)).tolist() == [0, 0, 0]
    assert always.route(result(3)).tolist() == [1, 1, 1]
    assert never.route(result(3, [-torch.inf, 1.0, 0.0])).tolist() == [1, 0, 1]


def test_a_row_alone_scores_as_in_a_batch(file: str, models: tuple[Any, Any]) -> None:
    made, step = router(file, models), result(6)
    together = made.scores(step)[0]
    for row in range(6):
        tokens, (logits, hidden) = step.next_token_ids, step.logits_output
        alone = StepResult(tokens[row : row + 1], LogitsOutput(logits[row : row + 1], hidden[row : row + 1]),
                           [step.requests[row]])
        torch.testing.assert_close(made.scores(alone)[0], together[row : row + 1], rtol=1e-5, atol=1e-6)


def test_missing_numbers_leave_and_missing_states_are_an_error(file: str, models: tuple[Any, Any]) -> None:
    step = result(3)
    step.logits_output.hidden_states[1] = torch.nan
    made = router(file, models, threshold=0.999999)
    assert made.scores(step)[0][1] == 1 and made.route(step).tolist()[1] == 1
    assert router(file, models, threshold="never").route(step).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="hidden_states: missing"):
        made.scores(StepResult(step.next_token_ids, LogitsOutput(step.logits_output[0], None), step.requests))


def pair(file: str, threshold: float | str) -> Algorithm:
    roles = {
        "base": {"_target_": "zoo.collm.router.CoLLMBase", "weights": file, "threshold": threshold},
        "large": {"_target_": "zoo.collm.router.CoLLMLarge", "weights": file},
    }
    return Algorithm("collm", ("base", "large"), roles, "base")


def decode(algorithm: Algorithm, models: list[Any]) -> Record:
    return Reference(algorithm, models).decode([3, 1, 4], SamplingParams(0, 12))


def test_both_ends_are_one_model_alone(file: str, models: tuple[Any, Any]) -> None:
    base, large = (decode(single(), [model]).token_ids for model in models)
    assert base != large
    for threshold in ("never", 1.0):
        assert decode(pair(file, threshold), list(models)).token_ids == base
    always = decode(pair(file, "always"), list(models))
    assert always.token_ids == large and set(always.token_models) == {1}


def test_an_end_that_the_base_proposes_can_be_deferred(tmp_path: Path, models: tuple[Any, Any]) -> None:
    ending = dummy(1, eos_token_id=12)  # what the base says first
    assert decode(single(), [ending]).finish_reason == "stop"
    path = save(tmp_path / "router.safetensors", (ending, models[1]), torch.zeros(HIDDEN))
    assert decode(pair(path, 0.5), [ending, models[1]]).token_ids == [12]  # 0.5 is not above 0.5
    deferred = decode(pair(path, 0.49), [ending, models[1]])
    assert deferred.token_ids == decode(single(), [models[1]]).token_ids
    assert deferred.discarded == len(deferred.token_ids)


def test_weights_fit_one_pair_of_models(file: str, models: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match=r"models.base: its fingerprint is .*; allowed is dummy-base \(fingerprint"):
        Reference(pair(file, 0.5), models[::-1])
    with pytest.raises(InputError, match=r"models.large: its fingerprint"):
        Reference(pair(file, 0.5), [models[0], models[0]])
