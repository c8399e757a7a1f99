from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from tokenrouter.core import InputError, Request, SamplingParams
from tokenrouter.sampling import Draw, Purpose, adjusted, draw_of, logprobs, probabilities, sample, uniform

LOGITS = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))


def one(**params: float) -> list[float]:
    return probabilities(LOGITS, [SamplingParams(0, 1, **{"temperature": 1.0, **params})])[0].tolist()


def test_filters_known_answers():
    assert one() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert one(top_k=2) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert one(top_p=0.6) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert one(top_p=0.7) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert one(top_p=0.71) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    assert one(min_p=0.45) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    assert one(temperature=0.5) == pytest.approx([x / 0.30 for x in (0.16, 0.09, 0.04, 0.01)])


def test_uniform_is_uniform_and_keyed():
    draws = [uniform(seed, position, 0, Purpose.SAMPLE) for seed in range(100) for position in range(100)]
    assert kstest(draws, "uniform").pvalue > 0.01
    keys = {uniform(1, 2, role, purpose) for role in range(3) for purpose in Purpose}
    assert len(keys) == 9


def test_sampled_frequencies_follow_the_probabilities():
    count = 4000
    draws = [Draw(SamplingParams(seed, 1, temperature=1.0), 0, 0) for seed in range(count)]
    tokens = sample(LOGITS.expand(count, -1), draws, 4)
    expected = [p * count for p in (0.4, 0.3, 0.2, 0.1)]
    assert chisquare(torch.bincount(tokens, minlength=4).tolist(), expected).pvalue > 0.01


def request(ids: list[int], prompt_len: int, **params: float) -> Request:
    return Request("r", 0, 0, 0, SamplingParams(0, 9, **params), {}, ids, prompt_len, [0])


def test_penalties_known_answers():
    logits = torch.tensor([[2.0, -1.0, 3.0, 0.5]])
    ids = [0, 1, 2, 2]  # the first two are the prompt
    for params, expected in (
        ({}, [2.0, -1.0, 3.0, 0.5]),
        ({"presence_penalty": 0.5}, [2.0, -1.0, 2.5, 0.5]),
        ({"frequency_penalty": 0.5}, [2.0, -1.0, 2.0, 0.5]),
        ({"repetition_penalty": 2.0}, [1.0, -2.0, 1.5, 0.5]),
        ({"repetition_penalty": 2.0, "presence_penalty": 0.25, "frequency_penalty": -1.0}, [1.0, -2.0, 3.25, 0.5]),
    ):
        draw = draw_of(request(ids, 2, **params), ())
        assert adjusted(logits, [draw])[0].tolist() == pytest.approx(expected)
    assert logits.tolist() == [[2.0, -1.0, 3.0, 0.5]]


def test_nothing_ends_a_request_before_min_tokens():
    params = {"min_tokens": 2, "stop_token_ids": (1,)}
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0]])
    answers = [sample(logits, [draw_of(request([3] * n, 1, **params), {0})], 4).item() for n in (1, 2, 3)]
    assert answers == [2, 2, 0]


def test_logprobs_are_those_of_the_raw_logits():
    told = logprobs(LOGITS[0], 2, 3)
    assert told.top_ids == [0, 1, 2]
    assert [told.own, *told.top] == pytest.approx(torch.tensor([0.2, 0.4, 0.3, 0.2]).log().tolist())
    assert logprobs(LOGITS[0], 2, 0).top == []


@given(st.integers(0, 2**40), st.integers(0, 500), st.integers(1, 6))
def test_a_draw_does_not_depend_on_its_batch(seed: int, position: int, others: int):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(others + 1, 50, generator=generator)
    ids = [i % 50 for i in range(position + 3)]
    draws = [Draw(SamplingParams(seed + i, 9, temperature=(0.0, 0.7, 1.3)[i % 3], top_k=(0, 5)[i % 2],
                                 frequency_penalty=(0.0, 0.3)[i % 2], repetition_penalty=(1.0, 1.1, 1.2)[i % 3]),
                  position, i % 2, ids, (i,) if i % 4 == 3 else ()) for i in range(others + 1)]
    together = sample(logits, draws, 50).tolist()
    alone = [sample(logits[i : i + 1], [draws[i]], 50).item() for i in range(others + 1)]
    assert together == alone


def test_logits_stay_raw_and_unshared_ids_are_never_drawn():
    logits = torch.tensor([[0.0, 1.0, 2.0, 9.0]])
    before = logits.clone()
    for temperature in (0.0, 1.0):
        params = [SamplingParams(seed, 1, temperature=temperature) for seed in range(30)]
        drawn = {sample(logits, [Draw(p, 0, 0)], 3).item() for p in params}
        assert 3 not in drawn and 2 in drawn
    assert torch.equal(logits, before)


@pytest.mark.parametrize("field, value", [("temperature", -1), ("top_p", 0), ("top_p", 1.5), ("max_tokens", 0),
                                          ("min_p", float("nan")), ("top_k", -1), ("seed", -5), ("min_tokens", 6),
                                          ("presence_penalty", 2.5), ("frequency_penalty", -3),
                                          ("repetition_penalty", 0), ("logprobs", 21)])
def test_bad_parameters_name_field_value_and_range(field: str, value: float):
    with pytest.raises(InputError, match=rf"sampling\.{field}=.*allowed is"):
        SamplingParams(**{"seed": 0, "max_tokens": 5, field: value}).check()
