"""R-Stitch: its entropy's known answers, its switching in both directions, and why the large model keeps its token."""
from __future__ import annotations

import math

import pytest
import torch

from tests.scripted import scripted
from tokenrouter.core import Request, SamplingParams
from tokenrouter.interface import Algorithm, BaseRouter, LogitsOutput, RequestView, StepResult
from zoo.entropy.router import normalised_entropy
from zoo.r_stitch.router import RStitchLarge, RStitchSmall
from zoo.reference import Reference
from zoo.walk import Record

V = 151936
EOS = 9


def logits_of(*probabilities: float, width: int = V) -> torch.Tensor:
    """[1, width] logits of a distribution over the first tokens; all others are impossible."""
    row = torch.full((1, width), -torch.inf)
    row[0, : len(probabilities)] = torch.tensor(probabilities).log()
    return row


@pytest.mark.parametrize(("logits", "expected"), [
    (torch.zeros(1, V), 1.0),
    (logits_of(1.0), 0.0),
    (logits_of(0.5, 0.5), 0.058095),
    (logits_of(*[0.1] * 10), math.log(10) / math.log(V)),
    (logits_of(0.9, 0.1), 0.02725),
    (logits_of(0.88, 0.12), 0.03075),
    (logits_of(0.9, 0.1) + 37.5, 0.02725),
    (torch.tensor([[110.0, 0.0, 0.0, 0.0]]), 0.0),  # exp(-110) underflows in fp32: p ln p would be NaN
])  # fmt: skip
def test_known_entropies(logits: torch.Tensor, expected: float) -> None:
    assert normalised_entropy(logits).item() == pytest.approx(expected, abs=5e-6)
    assert 0.0 <= normalised_entropy(logits).item() <= 1.0


def routed(router: BaseRouter, logits: torch.Tensor, **params: float) -> list[int]:
    request = Request("r", 0, router.role, 0, SamplingParams(0, 8), params, ids=[1], prompt_len=1, known=[1, 0])
    views = [RequestView(request, 2) for _ in range(len(logits))]
    return router.route(StepResult(logits.argmax(-1), LogitsOutput(logits, None), views)).tolist()


TWO_WAY = torch.cat([logits_of(0.9, 0.1), logits_of(0.88, 0.12)])


def test_both_sides_switch_at_the_same_threshold() -> None:
    assert routed(RStitchSmall(threshold=0.03), TWO_WAY) == [0, 1]
    assert routed(RStitchLarge(threshold=0.03), TWO_WAY) == [1, 0]


def test_at_the_threshold_itself_the_small_model_writes() -> None:
    tie = normalised_entropy(logits_of(0.88, 0.12)).item()
    assert routed(RStitchSmall(threshold=tie), TWO_WAY[1:]) == [0]
    assert routed(RStitchLarge(threshold=tie), TWO_WAY[1:]) == [1]


def test_the_words_mean_one_model_on_both_sides() -> None:
    for threshold, small, large in (("never", 0, 1), ("always", 1, 0)):
        assert routed(RStitchSmall(threshold=threshold), TWO_WAY) == [small] * 2
        assert routed(RStitchLarge(threshold=threshold), TWO_WAY) == [large] * 2
    assert routed(RStitchSmall(threshold=1.0), torch.zeros(1, 64)) == [0], "no entropy exceeds 1"


def test_a_row_of_nan_is_the_large_models() -> None:
    broken = torch.full((1, 64), torch.nan)
    assert routed(RStitchSmall(threshold=0.99), broken) == [1]
    assert routed(RStitchLarge(threshold=0.99), broken) == [0]


def stitched(large: str = "zoo.r_stitch.router.RStitchLarge", threshold: float | str = 0.5) -> Algorithm:
    return Algorithm("r_stitch", ("small", "large"), {
        "small": {"_target_": "zoo.r_stitch.router.RStitchSmall", "threshold": threshold},
        "large": {"_target_": large, "threshold": threshold}}, "small")


def walk(algorithm: Algorithm, small_unsure: set[int], large_unsure: set[int], max_tokens: int = 20) -> Record:
    """Both count up to EOS = 9; each doubts what comes after the tokens named."""
    count = {i: i + 1 for i in range(9)}
    models = [scripted(count, eos_token_id=EOS, logits=dict.fromkeys(unsure, 1.0))
              for unsure in (small_unsure, large_unsure)]
    return Reference(algorithm, models).decode([1], SamplingParams(0, max_tokens))


def test_the_large_model_writes_until_it_is_sure() -> None:
    record = walk(stitched(), {3}, {3, 4})
    assert record.token_ids == [2, 3, 4, 5, 6, 7, 8, 9]
    # The small model doubts after 3; so does the large one after 3 and 4, and hands back with the 6 that it is sure of.
    assert record.token_models == [0, 0, 1, 1, 1, 0, 0, 0]
    assert (record.discarded, record.handoffs, record.finish_reason) == (1, 2, "stop")


def test_an_end_that_is_doubted_is_discarded_and_the_large_models_ends() -> None:
    record = walk(stitched(), {8}, set())
    assert record.token_models == [0] * 7 + [1] and record.finish_reason == "stop" and record.discarded == 1


def test_a_large_model_that_is_never_sure_never_returns() -> None:
    record = walk(stitched(threshold="always"), set(), set())
    assert record.token_ids == [2, 3, 4, 5, 6, 7, 8, 9] and set(record.token_models) == {1}
    assert (record.discarded, record.handoffs) == (1, 1)


class Literal(RStitchLarge):
    """The large side as the paper's figure says: identical to the small one, but for the comparison."""

    handoff = "regenerate"


def test_the_figures_literal_reading_livelocks() -> None:
    with pytest.raises(RuntimeError, match="handoffs in a row accepted nothing"):
        walk(stitched("tests.zoo.r_stitch.test_router.Literal"), {3}, set())
    assert walk(stitched(), {3}, set()).finish_reason == "stop"
