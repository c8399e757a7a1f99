"""Speculative decoding: the large model's own answers in fewer of its steps, also where they are sampled."""
from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from scipy import stats

from tests.scripted import scripted
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.interface import Algorithm
from zoo.conformance import conformance
from zoo.reference import Reference
from zoo.speculative.router import SpeculativeLarge
from zoo.walk import Record

P = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)  # the large model's
Q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)  # the small model's
REQUESTS = 800
EOS = 9

test_conformance = conformance("speculative", alone={1: {}})
test_conformance_of_long_drafts = conformance("speculative", overrides=["algo.drafts_per_step=15"], alone={1: {}})


def speculative(large: str = "zoo.speculative.router.SpeculativeLarge", drafts: Any = 4) -> Algorithm:
    return Algorithm("speculative", ("small", "large"), {
        "small": {"_target_": "zoo.speculative.router.SpeculativeSmall", "drafts_per_step": drafts},
        "large": {"_target_": large}}, "small")


def walk(small: dict[int, int], large: dict[int, int], count: int, **params: Any) -> Record:
    models = [scripted(small, eos_token_id=EOS), scripted(large, eos_token_id=EOS)]
    return Reference(speculative(), models).decode([20], SamplingParams(0, count), params)


COUNT = {i: i + 1 for i in range(20, 60)}


def test_right_drafts_are_accepted_and_one_is_added() -> None:
    record = walk(COUNT, COUNT, 15)
    assert record.token_ids == list(range(21, 36)) and set(record.token_models) == {1}
    assert (record.discarded, record.handoffs) == (0, 5), "three times 4 drafts and 1, twice back to the small model"


def test_the_first_wrong_draft_is_replaced_and_those_behind_it_are_dropped() -> None:
    record = walk({**COUNT, 22: 50}, COUNT, 3)
    # 21, 22, 50, 51 are drafted where 3 are left: 21, 22, 50; the large model accepts two and writes 23.
    assert record.token_ids == [21, 22, 23] and (record.discarded, record.handoffs) == (1, 1)


def test_wrong_drafts_cost_steps_and_nothing_else() -> None:
    record = walk({}, COUNT, 5, drafts_per_step=3)
    assert record.token_ids == [21, 22, 23, 24, 25] and set(record.token_models) == {1}
    assert record.discarded == 3 + 3 + 3 + 2 + 1, "no more is drafted than max_tokens leaves"


def test_an_end_that_is_drafted_ends_the_answer_if_it_is_accepted() -> None:
    assert walk({**COUNT, 21: EOS}, {**COUNT, 21: EOS}, 9).token_ids == [21, EOS]
    refused = walk({**COUNT, 21: EOS}, COUNT, 4)
    assert refused.token_ids == [21, 22, 23, 24] and refused.finish_reason == "length"


class Oblivious(Reference):
    """Models whose three tokens have the same probabilities at every position."""

    def _pass(self, role: int, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return (Q, P)[role].float().log().expand(len(ids), -1), torch.zeros(len(ids), 1)


def sampled(algorithm: Algorithm, tokens: int = 3) -> list[Record]:
    reference = Oblivious(algorithm, [scripted({}, vocab_size=3)] * 2)
    return [reference.decode([0], SamplingParams(seed, tokens, temperature=1.0)) for seed in range(REQUESTS)]


def p_value(observed: Counter[int], shares: torch.Tensor) -> float:
    expected = shares / shares.sum() * observed.total()
    return float(stats.chisquare([observed[i] for i in range(len(expected))], expected.numpy()).pvalue)


def test_sampled_tokens_are_distributed_as_the_large_models() -> None:
    records = sampled(speculative(drafts=2))
    for position in range(3):
        assert p_value(Counter(record.token_ids[position] for record in records), P) > 1e-3
    pairs = Counter(3 * record.token_ids[0] + record.token_ids[1] for record in records)
    assert p_value(pairs, torch.outer(P, P).flatten()) > 1e-3
    # A draft holds with probability sum min(p, q) = 0.6.
    first = Counter(int(record.discarded == 0) for record in sampled(speculative(drafts=1), tokens=1))
    assert p_value(first, torch.tensor([0.4, 0.6], dtype=torch.float64)) > 1e-3


class AcceptAll(SpeculativeLarge):
    """Accepts whatever it is sent."""

    def verify(self, req: Any, sampled: list[int], logits: Any, draws: Any) -> list[int]:
        return [*req.drafts, sampled[-1]]


class ResampleAll(SpeculativeLarge):
    """Rejects rightly, but replaces by a draw from p instead of from what p has over q."""

    def verify(self, req: Any, sampled: list[int], logits: Any, draws: Any) -> list[int]:
        kept = super().verify(req, sampled, logits, draws)
        return [*kept[:-1], sampled[len(kept) - 1]]


@pytest.mark.parametrize("wrong", ["AcceptAll", "ResampleAll"])
def test_wrong_rules_would_be_caught(wrong: str) -> None:
    records = sampled(speculative(f"tests.zoo.speculative.test_router.{wrong}", drafts=2))
    assert p_value(Counter(record.token_ids[0] for record in records), P) < 1e-6


@pytest.mark.parametrize("drafts", [0, 16, 2.5, "four", True])
def test_numbers_of_drafts_that_make_no_sense(drafts: object) -> None:
    with pytest.raises(InputError, match=r"drafts_per_step=.*: allowed is a whole number in \[1, 15\]"):
        speculative(drafts=drafts).router("small")
    with pytest.raises(InputError, match="drafts_per_step"):
        speculative().parse({"drafts_per_step": drafts})
