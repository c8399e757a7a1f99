"""What holds for every router that was trained for a pair of models: R2R, CITER and Co-LLM."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scripted import dummy
from tests.zoo.algorithms import single
from tests.zoo.trained import CITER, HIDDEN, KINDS, R2R, Kind, context, decode, pair, result
from tokenrouter.core import InputError
from tokenrouter.engine.routers import context_of
from tokenrouter.interface import LogitsOutput, StepResult
from zoo import weights
from zoo.reference import Reference
from zoo.setup import Setup


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return pair()


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def file(kind: Kind, models: Sequence[Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    return kind.save(tmp_path_factory.mktemp(kind.name) / "router.safetensors", models)


def test_on_which_side_a_proposal_at_the_threshold_is(kind: Kind, file: str, models: Sequence[Any]) -> None:
    step = result(5)
    scores = kind.router(file, models).scores(step)[0]
    assert len(set(scores.tolist())) == 5
    for threshold in scores.tolist():
        sent = kind.router(file, models, threshold=threshold).route(step)
        assert sent.tolist() == kind.leaves(scores, threshold).long().tolist()
        assert sent[scores == threshold].tolist() == [int(kind.name == "r2r")]


def test_never_always_and_thresholds_of_single_requests(kind: Kind, file: str, models: Sequence[Any]) -> None:
    never, always = (kind.router(file, models, threshold=word) for word in ("never", "always"))
    assert never.route(result(3)).tolist() == [0, 0, 0]
    assert always.route(result(3)).tolist() == [1, 1, 1]
    own = [always.threshold, never.threshold, kind.far]
    assert never.route(result(3, own)).tolist() == [1, 0, 0]


def test_a_row_alone_scores_as_in_a_batch(kind: Kind, file: str, models: Sequence[Any]) -> None:
    made, step = kind.router(file, models), result(6)
    together = made.scores(step)[0]
    for row in range(6):
        tokens, (logits, hidden) = step.next_token_ids, step.logits_output
        assert hidden is not None
        alone = StepResult(tokens[row : row + 1], LogitsOutput(logits[row : row + 1], hidden[row : row + 1]),
                           [step.requests[row]])
        torch.testing.assert_close(made.scores(alone)[0], together[row : row + 1], rtol=1e-5, atol=1e-6)


def test_missing_numbers_leave_and_missing_states_are_an_error(kind: Kind, file: str, models: Sequence[Any]) -> None:
    step, made = result(3), kind.router(file, models, threshold=abs(kind.far - 1e-6))
    assert step.logits_output.hidden_states is not None
    step.logits_output.hidden_states[1] = torch.nan
    assert made.scores(step)[0][1] == (0 if kind.name == "citer" else 1)
    assert made.route(step).tolist()[1] == 1
    assert kind.router(file, models, threshold="never").route(step).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="hidden_states: missing"):
        made.scores(StepResult(step.next_token_ids, LogitsOutput(step.logits_output[0], None), step.requests))


def test_both_ends_are_one_model_alone(kind: Kind, file: str, models: Sequence[Any]) -> None:
    small, large = (decode(single(), [model]).token_ids for model in models)
    assert small != large
    for threshold in ("never", kind.far):
        assert decode(kind.algorithm(file, threshold), models).token_ids == small
    always = decode(kind.algorithm(file, "always"), models)
    assert always.token_ids == large and set(always.token_models) == {1}


@pytest.mark.parametrize("kind", (R2R, CITER), ids=lambda kind: kind.name, indirect=True)
def test_between_them_one_token_at_a_time(kind: Kind, file: str, models: Sequence[Any]) -> None:
    seen: list[float] = []
    alone = Reference(kind.algorithm(file, "never"), list(models))
    router: Any = alone.routers[0]
    scores = router.scores

    def listening(step: StepResult) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = scores(step)
        seen.extend(found[0].tolist())
        return found

    router.scores = listening
    alone.decode([3, 1, 4], decode(single(), models[:1]).sampling)
    record = decode(kind.algorithm(file, sorted(seen)[len(seen) // 2]), models)
    assert set(record.token_models) == {0, 1}
    assert record.discarded == record.token_models.count(1)


def test_weights_fit_one_pair_of_models(kind: Kind, file: str, models: Sequence[Any]) -> None:
    algorithm, role = kind.algorithm(file, 0.5), kind.roles[0]
    Reference(algorithm, list(models))
    with pytest.raises(InputError, match=rf"models.{role}: its fingerprint is .*; allowed is dummy-{role} \(finger"):
        Reference(algorithm, list(models[::-1]))
    with pytest.raises(InputError, match=r"models.large: its fingerprint"):
        Reference(algorithm, [models[0], models[0]])
    wider = context(dummy(1, hidden_size=48))._replace(hidden_size=48)
    with pytest.raises(InputError, match=rf"its hidden_size is 48; allowed is dummy-{role} \(hidden_size {HIDDEN}\)"):
        kind.small(weights=file).check_model(wider)


def test_weights_that_are_not_there_or_not_ours(kind: Kind, tmp_path: Path) -> None:
    allowed = f"allowed is a safetensors file of a trained {kind.name} router"
    with pytest.raises(InputError, match=rf"weights='nowhere.safetensors': {allowed}"):
        kind.small(weights="nowhere.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(InputError, match=allowed):
        kind.large(weights=str(tmp_path / "broken.safetensors"))
    weights.save(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {"kind": "other"})
    with pytest.raises(InputError, match=f"{allowed}; this one is 'other'"):
        kind.small(weights=str(tmp_path / "other.safetensors"))


def test_shipped_weights_are_small_and_of_the_embedded_models(kind: Kind) -> None:
    setup = Setup.compose([f"algo={kind.name}", "models=tiny"])
    path = setup.config["algo"]["weights"]
    assert (Path(__file__).parents[2] / path).stat().st_size < 2_000_000
    _, metadata = weights.load(path, kind.name)
    assert "router" in metadata["data"]
    for role in setup.algorithm.roles:
        weights.check_model(path, metadata, role, context_of(setup.engine(role, 1, 64)))
