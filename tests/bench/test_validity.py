from __future__ import annotations

from typing import Any

import pytest

from bench.validity import differences, judge

GOOD: dict[str, Any] = {
    "mode": "closed", "completed": 400, "failed": 0, "duration_s": 61.0, "concurrency": 4,
    "steady_concurrency": 3.99, "client_busy": 0.1, "others_busy": 0.02, "stopped": None,
}  # fmt: skip


def test_a_full_run_is_valid_and_says_what_nobody_checked() -> None:
    found = judge(**GOOD)
    assert found["valid"] and found["kind"] == "full" and not found["reasons"] and found["unchecked"]


@pytest.mark.parametrize(("field", "value", "kind"), [
    ("failed", 1, "full"), ("duration_s", 59.0, "smoke"), ("completed", 39, "smoke"),
    ("steady_concurrency", 3.7, "full"),
    ("client_busy", 0.9, "full"), ("others_busy", 0.4, "full"),
    ("stopped", KeyboardInterrupt(), "full"), ("stopped", RuntimeError("x"), "full"),
])  # fmt: skip
def test_each_demand_alone_makes_it_invalid(field: str, value: object, kind: str) -> None:
    found = judge(**GOOD | {field: value})
    assert not found["valid"] and found["kind"] == kind and len(found["reasons"]) == 1


@pytest.mark.parametrize("mode", ["poisson", "batch"])
def test_how_many_are_under_way_is_no_demand_where_requests_come_by_themselves(mode: str) -> None:
    assert judge(**GOOD | {"mode": mode, "steady_concurrency": 0.5, "completed": 5})["valid"]
    assert judge(**GOOD | {"mode": mode, "steady_concurrency": 0.5, "completed": 4})["valid"] is (mode == "batch")


def test_one_failure_in_a_thousand_is_allowed() -> None:
    assert judge(**GOOD | {"completed": 999, "failed": 1})["valid"]


def test_runs_with_other_graders_are_not_compared() -> None:
    origin = dict.fromkeys(("models_hash", "data_source", "data_version", "cpu", "gpu", "evidence", "git_sha"), "x")
    run = {"provenance": origin, "workload": "w", "sampling": {}, "hardware": {}, "load": {},
           "quality": {"metric": "accuracy (boxed)", "value": 0.5}}
    assert differences([run, run | {"quality": {"metric": "accuracy (boxed)", "value": 0.6}}]) == []
    assert differences([run, run | {"quality": {"metric": "accuracy (choice)", "value": 0.5}}]) == ["grader"]
