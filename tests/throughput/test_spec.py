"""What a spec accepts, and how it says no."""
from __future__ import annotations

import math

import pytest

from tests.throughput.systems import R2R, r2r
from tokenrouter.core import InputError
from tokenrouter.throughput.spec import Spec


@pytest.mark.parametrize(("change", "message"), [
    ({"N": 0}, "N: 0 is not a whole number"),
    ({"N": 2.5}, "N: 2.5 is not a whole number"),
    ({"N": math.nan}, "N: nan is not a whole number"),
    ({"N": True}, "N: True is not a whole number"),
    ({"N": 5000}, "N: 5000 is not a whole number from 1 to 1024"),
    ({"N": None}, "N: missing"),
    ({"P": [[0.6, 0.35], [1, 0]]}, r"P\[0\]: .* sums to 0.95"),
    ({"P": [[1.1, -0.1], [1, 0]]}, r"P\[0\]\[1\]: -0.1"),
    ({"P": [[math.nan, 1], [1, 0]]}, r"P\[0\]\[0\]: nan"),
    ({"P": [[1]]}, "P: 1 rows .* 2 x 2 is needed"),
    ({"P": [[1, 0], [1]]}, "P: 2 rows .* 2 x 2 is needed"),
    ({"P": 0.35}, "P: 0.35 is not a list"),
    ({"C": [[1, 0, 0], [1, 0, 0]]}, "C: .* 2 x 2 is needed"),
    ({"C": [[1, "a"], [1, 0]]}, r"C\[0\]\[1\]: 'a'"),
    ({"L_ms": [0, 27.9]}, r"L_ms\[0\]: 0 is not positive"),
    ({"L_ms": [6, -27.9]}, r"L_ms\[1\]: -27.9"),
    ({"L_ms": [6, math.inf]}, r"L_ms\[1\]: inf"),
    ({"L_ms": [6.05, 27.9]}, r"L_ms\[0\]: 6.05 ms is not a multiple of delta_ms = 0.1"),
    ({"L_ms": [6, [27.9, 28.95]]}, r"L_ms\[1\]: 28.95 ms is not a multiple"),
    ({"L_ms": [6, []]}, r"L_ms\[1\]: \[\] holds no latency"),
    ({"L_ms": []}, "L_ms: .* holds no model"),
    ({"L_ms": "6, 27.9"}, "L_ms: '6, 27.9' is not a list"),
    ({"delta_ms": 0}, "delta_ms: 0 is not positive"),
    ({"delta_ms": 1e-12}, "more than 1e.09 quanta"),
    ({"B": [2, 4]}, r"B: \[2, 4\] can deadlock; the sum of \(B_i - 1\) must be below N = 4"),
    ({"B": [1, 5]}, r"B\[1\]: 5 is not a whole number from 1 to 4"),
    ({"B": [0, 1]}, r"B\[0\]: 0"),
    ({"B": [1]}, "B: .* 2 models need 2"),
    ({"B": "13"}, "B: '13' is not a list"),
    ({"hold": [2]}, r"hold: \[2\] must hold different model indices below 2"),
    ({"hold": [0, 0]}, "hold: .* different"),
    ({"contention": 0.5}, "contention.factor: 0.5 is below 1"),
    ({"contention": {"devices": [[0, 1]]}}, "contention: .* must be a factor"),
    ({"contention": {"factor": 2, "devices": [[0, 1], [1]]}}, "contention.devices: .* twice"),
    ({"run_lengths": [[1]]}, "run_lengths: 1 entries"),
    ({"run_lengths": [[0, 0], None]}, r"run_lengths\[0\]: .* no weight"),
    ({"run_lengths": [[1], None], "P": [[1, 0], [1, 0]]}, r"run_lengths\[0\]: .* never left"),
    ({"b": [1, 1]}, "b: unknown field; known are B, C"),
])
def test_bad_input_is_named(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        Spec.parse(R2R | change)
    assert "\n" not in str(error.value)


def test_ticks_are_divided_by_their_gcd() -> None:
    spec = r2r(4)
    assert spec.ticks == ((20,), (93,))
    assert spec.tick_ms == pytest.approx(0.3)


def test_the_last_latency_holds_for_larger_batches() -> None:
    spec = r2r(4, L_ms=[[6.0, 6.3], 27.9])
    assert [spec.step_ticks(0, b) for b in (1, 2, 3, 4)] == [20, 21, 21, 21]
    assert not spec.constant_latency
    assert r2r(4, L_ms=[[6.0, 6.0], 27.9]).constant_latency


def test_contention_is_of_all_models_unless_devices_are_given() -> None:
    shared = r2r(4, contention=1.5).contention
    assert shared is not None and (shared.factor, shared.devices) == (1.5, ((0, 1),))
    assert r2r(4, contention={"factor": 1.5, "devices": [[0, 1]]}).contention == shared
