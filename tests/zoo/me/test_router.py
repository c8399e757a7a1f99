"""ME: what is sampled follows the token-level mixture, which a fixed entry, or one draw a request, would not."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from scipy import stats

from tests.scripted import scripted
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.interface import Algorithm, EntryContext
from zoo.me.router import drawn
from zoo.reference import Reference
from zoo.walk import Record

WEIGHTS = (0.5, 0.3, 0.2)
SHARES = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]], dtype=torch.float64)  # of each model
MIXTURE = torch.tensor(WEIGHTS, dtype=torch.float64) @ SHARES
ROLES = ("small", "medium", "large")
REQUESTS = 800
ALPHA = 1e-3  # a right implementation fails with this probability, once and for all: everything is seeded


def me(entry: str | None = None, weights: tuple[float, ...] = WEIGHTS) -> Algorithm:
    config = {"weights": list(weights)}
    routers = {role: {"_target_": "zoo.me.router.MERouter", **config} for role in ROLES[: len(weights)]}
    rule = entry or {"_target_": "zoo.me.router.MEEntry", **config}
    return Algorithm("me", ROLES[: len(weights)], routers, rule)


class Oblivious(Reference):
    """Models whose three tokens have the same probabilities at every position."""

    def _pass(self, role: int, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return SHARES[role].float().log().expand(len(ids), -1), torch.zeros(len(ids), 1)


def sampled(algorithm: Algorithm, tokens: int = 2) -> list[Record]:
    models = [scripted({}, vocab_size=3) for _ in algorithm.roles]
    reference = Oblivious(algorithm, models)
    return [reference.decode([0], SamplingParams(seed, tokens, temperature=1.0)) for seed in range(REQUESTS)]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return sampled(me())


def p_value(observed: Counter[int], probabilities: Sequence[float] | torch.Tensor) -> float:
    shares = torch.as_tensor(probabilities, dtype=torch.float64)
    expected = shares / shares.sum() * observed.total()
    return float(stats.chisquare([observed[i] for i in range(len(expected))], expected.numpy()).pvalue)


def pairs(records: list[Record]) -> Counter[int]:
    return Counter(3 * record.token_ids[0] + record.token_ids[1] for record in records)


def test_the_mixture_is_as_computed_by_hand() -> None:
    assert MIXTURE.tolist() == pytest.approx([0.42, 0.32, 0.26])


@pytest.mark.parametrize("position", [0, 1])
def test_tokens_follow_the_mixture(records: list[Record], position: int) -> None:
    assert p_value(Counter(record.token_ids[position] for record in records), MIXTURE) > ALPHA


def test_tokens_follow_the_product_of_mixtures_and_not_the_mixture_of_products(records: list[Record]) -> None:
    product = torch.outer(MIXTURE, MIXTURE).flatten()
    of_products = sum(w * torch.outer(p, p).flatten() for w, p in zip(WEIGHTS, SHARES, strict=True))
    assert p_value(pairs(records), product) > ALPHA
    assert p_value(pairs(records), torch.as_tensor(of_products)) < 1e-6


@pytest.mark.parametrize("entry", ROLES)
def test_a_fixed_entry_would_be_caught(entry: str) -> None:
    wrong = sampled(me(entry))
    assert p_value(Counter(record.token_ids[0] for record in wrong), MIXTURE) < 1e-6
    assert p_value(Counter(record.token_ids[1] for record in wrong), MIXTURE) > ALPHA, "only the first draw is wrong"


def test_the_power_of_the_test_is_known() -> None:
    """Of detecting, at ALPHA, the fixed entry that is hardest to see: the noncentral chi-square's tail."""
    effects = [float(((p - MIXTURE) ** 2 / MIXTURE).sum()) for p in SHARES]
    critical = stats.chi2.ppf(1 - ALPHA, df=2)
    power = min(stats.ncx2.sf(critical, 2, REQUESTS * effect) for effect in effects)
    assert power > 0.9999


def test_each_model_writes_its_share(records: list[Record]) -> None:
    written = Counter(role for record in records for role in record.token_models)
    assert p_value(written, WEIGHTS) > ALPHA
    moves = Counter(int(record.token_models[0] != record.token_models[1]) for record in records)
    assert p_value(moves, [0.38, 0.62]) > ALPHA  # 1 - sum of squares
    assert all(record.discarded == 0 for record in records)


def test_greedy_decoding_is_a_draw_among_the_models_favourites() -> None:
    reference = Oblivious(me(), [scripted({}, vocab_size=3) for _ in ROLES])
    first = Counter(reference.decode([0], SamplingParams(seed, 1)).token_ids[0] for seed in range(REQUESTS))
    assert p_value(first, WEIGHTS) > ALPHA


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    assert [drawn(WEIGHTS, 5, t) for t in range(6)] == [drawn([5, 3, 2], 5, t) for t in range(6)]
    assert len({tuple(drawn(WEIGHTS, seed, t) for t in range(12)) for seed in range(20)}) == 20
    assert {drawn((0.0, 1.0, 0.0), seed, 0) for seed in range(50)} == {1}
    assert {drawn((1.0, 0.0), seed, 0) for seed in range(50)} == {0}


def test_any_number_of_models_and_weights_that_come_with_a_request() -> None:
    two = Oblivious(me(weights=(1, 1)), [scripted({}, vocab_size=3)] * 2)
    assert set(two.decode([0], SamplingParams(1, 40)).token_models) == {0, 1}
    for role in range(2):
        own = two.decode([0], SamplingParams(1, 8), {"weights": [int(role == r) for r in range(2)]})
        assert own.token_models == [role] * 8 and own.handoffs == 0


@pytest.mark.parametrize("weights", [[1, 1], [1, -1, 1], [0, 0, 0], "half", [1, True, 0], [1, float("nan"), 0]])
def test_weights_that_make_no_sense(weights: object) -> None:
    configured = {"_target_": "zoo.me.router.MERouter", "weights": weights}
    refused: list[Callable[[], object]] = [
        lambda: me().parse({"weights": weights}),
        lambda: me().entry_role(EntryContext([0], 0, {"weights": weights})),
        lambda: Algorithm("me", ROLES, dict.fromkeys(ROLES, configured), "small").router("small"),
    ]
    for refuse in refused:
        with pytest.raises(InputError, match=r"weights=.*allowed is a list of numbers in \[0, 1e\+06\], one for each"):
            refuse()
