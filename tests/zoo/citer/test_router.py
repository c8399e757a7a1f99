"""CITER's network and router: sizes, folding, strictness, rows, and its two ends."""
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
from zoo.citer.network import ConfidenceNetwork, FoldedNetwork
from zoo.citer.router import KIND, CiterSmall
from zoo.reference import Reference
from zoo.walk import Record

HIDDEN, VOCAB = 32, 64


def network(hidden: int = HIDDEN) -> ConfidenceNetwork:
    """One whose running statistics and norm are not the initial ones, or folding them wrongly would not show."""
    torch.manual_seed(0)
    made = ConfidenceNetwork(hidden)
    norm = made[1]
    for tensor in (norm.weight.data, norm.running_var):
        tensor.uniform_(0.5, 2.0)
    for tensor in (norm.bias.data, norm.running_mean, made[6].weight.data):
        tensor.normal_()
    return made.eval()


@pytest.mark.parametrize(("hidden", "count"), [(1536, 9_449_473), (1024, 4_202_497), (64, 16_897)])
def test_number_of_parameters(hidden: int, count: int) -> None:
    with torch.device("meta"):
        made = sum(parameter.numel() for parameter in ConfidenceNetwork(hidden).parameters())
    assert made == count == 4 * hidden**2 + 8 * hidden + 1


def test_batch_norm_makes_training_differ_from_inference() -> None:
    made, hidden = network(), torch.randn(6, HIDDEN)
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
    full, hidden = network(), torch.randn(7, HIDDEN)
    expected = full(hidden).squeeze(1)
    torch.testing.assert_close(FoldedNetwork(full)(hidden), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return dummy(1, eos_token_id=7), dummy(2, eos_token_id=7)


def context(model: Any) -> ModelContext:
    return ModelContext(torch.device("cpu"), VOCAB, HIDDEN, (), model.get_input_embeddings())


@pytest.fixture(scope="module")
def file(models: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("citer") / "router.safetensors"
    described = {role: weights.describe(f"dummy-{role}", context(model))
                 for role, model in zip(("small", "large"), models, strict=True)}
    weights.save(path, network().state_dict(), {"kind": KIND, "models": described})
    return str(path)


def router(file: str, models: tuple[Any, Any], **config: Any) -> CiterSmall:
    made = CiterSmall(weights=file, **config)
    made.setup(context(models[0]))
    return made


def result(rows: int, thresholds: list[float] | None = None) -> StepResult:
    torch.manual_seed(rows)
    params = [{"threshold": threshold} for threshold in thresholds] if thresholds else [{}] * rows
    views = [RequestView(Request("0", 0, 0, 0, 0, SamplingParams(0, 9), own, [1], 1, [1, 0]), 2) for own in params]
    output = LogitsOutput(torch.randn(rows, VOCAB), torch.randn(rows, HIDDEN))
    return StepResult(torch.randint(0, VOCAB, (rows,)), output, views)


def test_a_proposal_at_the_threshold_stays(file: str, models: tuple[Any, Any]) -> None:
    step = result(5)
    scores = router(file, models).scores(step)[0]
    for threshold in scores.tolist():
        sent = router(file, models, threshold=threshold).route(step)
        assert sent.tolist() == (scores < threshold).long().tolist()
        assert sent[scores == threshold].tolist() == [0]
    assert len(set(scores.tolist())) == 5


def test_never_always_and_thresholds_of_single_requests(file: str, models: tuple[Any, Any]) -> None:
    never, always = router(file, models, threshold="never"), router(file, models, threshold="always")
    assert never.route(result(3)).tolist() == [0, 0, 0]
    assert always.route(result(3)).tolist() == [1, 1, 1]
    assert never.route(result(3, [torch.inf, 0.0, 1.0])).tolist() == [1, 0, 1]


def test_a_row_alone_scores_as_in_a_batch(file: str, models: tuple[Any, Any]) -> None:
    made, step = router(file, models), result(6)
    together = made.scores(step)[0]
    for row in range(6):
        tokens, (logits, hidden) = step.next_token_ids, step.logits_output
        alone = StepResult(tokens[row : row + 1], LogitsOutput(logits[row : row + 1], hidden[row : row + 1]),
                           [step.requests[row]])
        torch.testing.assert_close(made.scores(alone)[0], together[row : row + 1], rtol=1e-5, atol=1e-6)


def test_logits_do_not_matter_and_missing_numbers_leave(file: str, models: tuple[Any, Any]) -> None:
    step, made = result(3), router(file, models, threshold=0.0)
    before = made.scores(step)[0]
    step.logits_output.next_token_logits.fill_(torch.nan)
    assert made.scores(step)[0].equal(before)
    step.logits_output.hidden_states[1] = torch.nan
    assert made.scores(step)[0][1] == 0
    assert router(file, models, threshold="never").route(step).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="hidden_states: missing"):
        made.scores(StepResult(step.next_token_ids, LogitsOutput(step.logits_output[0], None), step.requests))


def pair(file: str, threshold: float | str) -> Algorithm:
    roles = {
        "small": {"_target_": "zoo.citer.router.CiterSmall", "weights": file, "threshold": threshold},
        "large": {"_target_": "zoo.citer.router.CiterLarge", "weights": file},
    }
    return Algorithm("citer", ("small", "large"), roles, "small")


def decode(algorithm: Algorithm, models: list[Any]) -> Record:
    return Reference(algorithm, models).decode([3, 1, 4], SamplingParams(0, 12))


def test_both_ends_are_one_model_alone(file: str, models: tuple[Any, Any]) -> None:
    small, large = (decode(single(), [model]).token_ids for model in models)
    assert small != large
    for threshold in ("never", 0.0):
        assert decode(pair(file, threshold), list(models)).token_ids == small
    always = decode(pair(file, "always"), list(models))
    assert always.token_ids == large and set(always.token_models) == {1}


def test_between_them_one_token_at_a_time(file: str, models: tuple[Any, Any]) -> None:
    alone = decode(single(), [models[0]])
    with torch.no_grad():
        hidden = models[0].model(torch.tensor([alone.prompt_ids + alone.token_ids])).last_hidden_state[0, 2:]
        threshold = FoldedNetwork(network())(hidden).sigmoid().median().item()
    record = decode(pair(file, threshold), list(models))
    assert set(record.token_models) == {0, 1}
    assert record.discarded == record.token_models.count(1)


def test_weights_fit_one_pair_of_models(file: str, models: tuple[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"models.small: its fingerprint is .*; allowed is dummy-small \(fingerprint"):
        Reference(pair(file, 0.5), models[::-1])
    with pytest.raises(InputError, match=r"models.large: its fingerprint"):
        Reference(pair(file, 0.5), [models[0], models[0]])
    weights.save(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {"kind": "r2r"})
    with pytest.raises(InputError, match="allowed is a safetensors file of a trained citer router; this one is 'r2r'"):
        CiterSmall(weights=str(tmp_path / "other.safetensors"))
