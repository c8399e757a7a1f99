from __future__ import annotations

import numpy as np
import pytest
from pytest import approx

from bench.metrics import accuracy_interval, goodput, latencies, pass_at_k, spread, steady, window
from tests.bench.fake import record
from tokenrouter.core import FinishReason


def test_latencies_of_one_request_by_hand() -> None:
    # sent at 10 s; 1 token after 200 ms, 3 tokens after 500 ms, 1 token after 600 ms
    figures = latencies([record(10.0, [(10.2, 1), (10.5, 3), (10.6, 1)])])
    assert figures["mean_ttft_ms"] == approx(200)
    assert figures["mean_e2el_ms"] == approx(600)
    assert figures["mean_tpot_ms"] == approx((600 - 200) / 4)
    assert figures["mean_icl_ms"] == approx((300 + 100) / 2)
    assert figures["mean_itl_ms"] == approx((3 * 100 + 100) / 4)  # the chunk of three counts once a token
    assert figures["std_ttft_ms"] == 0


def test_tpot_weighs_requests_equally_and_itl_tokens() -> None:
    short = record(0.0, [(0.1, 1), (0.2, 1)])  # 100 ms a token
    long = record(0.0, [(0.1, 1), *[(0.1 + 0.01 * i, 1) for i in range(1, 10)]])  # 10 ms a token
    figures = latencies([short, long])
    assert figures["mean_tpot_ms"] == approx((100 + 10) / 2)
    assert figures["mean_itl_ms"] == approx((100 + 9 * 10) / 10)


def test_failed_requests_and_those_in_one_chunk_give_no_time_between_tokens() -> None:
    failed = record(0.0, [(9.0, 1), (10.0, 1)], reason=FinishReason.ABORT)
    broken = record(0.0, [(9.0, 1), (10.0, 1)], error="boom")
    figures = latencies([failed, broken, record(0.0, [(0.3, 5)])])
    assert figures["p99_ttft_ms"] == approx(300)
    assert figures["mean_tpot_ms"] is None and figures["p99_itl_ms"] is None and figures["median_icl_ms"] is None


def test_spread_is_numpys() -> None:
    values = [3.0, 1.0, 10.0, 4.0]
    assert spread(values) == {
        "mean": 4.5, "median": 3.5, "std": approx(np.std(values)), "p90": approx(np.percentile(values, 90)),
        "p95": approx(np.percentile(values, 95)), "p99": approx(np.percentile(values, 99))}
    assert set(spread([]).values()) == {None}


def test_steady_window_leaves_out_the_ramps() -> None:
    # two clients: full from 1 s (second one starts) to 5 s (first one ends for good)
    records = [
        record(0.0, [(0.5, 7), (2.0, 4), (3.0, 4)], end=3.0),
        record(1.0, [(4.0, 4), (6.0, 50)], end=6.0),
        record(3.0, [(5.0, 8)], end=5.0),  # sent at the very time at which the first one ended
    ]
    window = steady(records, 2)
    assert window.duration_s == approx(4.0)
    assert window.output_throughput == approx((4 + 4 + 4 + 8) / 4)
    assert window.concurrency == approx(2.0)


def test_steady_window_tells_of_clients_that_lag() -> None:
    records = [record(0.0, [(4.0, 1)]), record(0.0, [(1.0, 1)]), record(3.0, [(4.0, 1)])]
    assert steady(records, 2).concurrency == approx((4 + 1 + 1) / 4)


def test_steady_window_is_empty_if_concurrency_is_never_reached() -> None:
    assert steady([record(0.0, [(1.0, 3)])], 2).duration_s == 0


@pytest.mark.parametrize("mode", ["poisson", "batch"])
def test_the_window_of_an_open_loop_is_the_whole_run(mode: str) -> None:
    found = window([record(0.0, [(0.5, 7), (3.0, 4)], end=3.0), record(1.0, [(5.0, 9)], end=5.0)], mode, 9)
    assert (found.duration_s, found.output_throughput, found.concurrency) == approx((5.0, 20 / 5, (3 + 4) / 5))


@pytest.mark.parametrize(("slo", "kept"), [
    ({"ttft_ms": 200}, 3), ({"ttft_ms": 199}, 1), ({"tpot_ms": 50}, 2), ({"e2el_ms": 550}, 2),
    ({"ttft_ms": 200, "tpot_ms": 100, "e2el_ms": 600}, 3), ({"ttft_ms": 150, "tpot_ms": 60}, 0),
])
def test_goodput_counts_requests_that_keep_every_bound(slo: dict[str, float], kept: int) -> None:
    records = [
        record(0.0, [(0.2, 1), (0.6, 4)]),  # 100 ms a token
        record(0.0, [(0.2, 1), (0.25, 1)]),  # 50
        record(0.0, [(0.1, 5)]),  # in one piece: none
        record(0.0, [(0.1, 1), (0.11, 1)], error="boom"),
    ]
    unlimited = {"ttft_ms": None, "tpot_ms": None, "e2el_ms": None}
    if slo == {"ttft_ms": 150, "tpot_ms": 60}:
        records.pop(2)
    assert goodput(records, 2.0, unlimited | slo) == kept / 2
    assert goodput(records, 2.0, unlimited) is None


def test_interval_of_single_draws_is_wilsons() -> None:
    low, high = accuracy_interval([f"p{i}" for i in range(100)], [True] * 100)
    assert high == 1.0 and low == approx(0.9630, abs=1e-4)


def test_interval_widens_when_draws_share_problems() -> None:
    correct = [i % 4 != 0 for i in range(100)]
    alone = accuracy_interval([f"p{i}" for i in range(100)], correct)
    shared = accuracy_interval([f"p{i % 4}" for i in range(100)], correct)  # each problem right or wrong every time
    assert shared[1] - shared[0] > 2 * (alone[1] - alone[0])


def test_pass_at_k() -> None:
    # one problem 1 of 3 right, one 3 of 3
    problems, correct = ["a"] * 3 + ["b"] * 3, [True, False, False, True, True, True]
    assert pass_at_k(problems, correct) == {"1": approx((1 / 3 + 1) / 2), "3": 1.0}
    assert pass_at_k(["a", "b"], [True, False]) is None


@pytest.mark.parametrize("k", ["1", "2"])
def test_pass_at_k_of_nothing_right_is_zero(k: str) -> None:
    found = pass_at_k(["a", "a"], [False, False])
    assert found is not None and found[k] == 0
