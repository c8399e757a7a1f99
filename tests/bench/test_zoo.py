"""The zoo's table: which points are run, what they are compared by, and what is written."""
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import series
from bench.zoo import Curve, Entry, Point, composed, curve_of, entry_of, main, origin, plan, readable, tabulate
from tokenrouter.core import InputError

CURVE = [dict(zip(("threshold", "llm_token_fraction", "quality"), row, strict=True)) for row in (
    ("never", 0.0, 0.4), (0.9, 0.012, 0.8), (0.5, 0.03, 0.98), (0.1, 0.19, 1.0), ("always", 1.0, 1.0))]


def summary(tokens: float = 100.0, **changes: Any) -> dict[str, Any]:
    return {
        "threshold": 0.5, "system": "tokenrouter", "workload": "aime", "sampling": {}, "hardware": {"cores": 2},
        "models": {"small": {}, "large": {}}, "load": {"concurrency": 4, "num_requests": 9, "seed": 0},
        "quality": {"value": 0.9, "ci95": [0.8, 0.95], "n": 9, "metric": "accuracy"},
        "routing": {"llm_token_fraction": 0.1, "handoffs_per_100_tokens": 12.3}, "output_throughput": tokens,
        "validity": {"valid": False, "reasons": ["measured 1 s"]},
        "provenance": {"models_hash": "m", "data_source": "d", "data_version": 1, "cpu": "c", "gpu": None,
                       "git_sha": "s", "evidence": "measured", "dirty": False, "torch": "2",
                       "date": "2026-01-01T00:00"} | changes,
    }


def test_points_are_read_off_the_curve(tmp_path: Path) -> None:
    curve = Curve(tmp_path, 0.5, CURVE)
    assert curve.threshold("calibrated") == 0.5
    assert curve.threshold({"llm_token_fraction": 0.01}) == 0.9 and curve.threshold({"llm_token_fraction": 0.3}) == 0.1
    assert curve.threshold({"quality": 0.97}) == 0.5
    assert curve.threshold({"llm_token_fraction": 0.0}) == 0.9, "never is one model alone, which is no point"


def test_shipped_curves_give_three_points_in_order() -> None:
    for name in ("r2r", "r_stitch"):
        values = composed(f"algo={name}")
        entry = entry_of(values)
        assert [point.name for point in entry.points] == ["low", "mid", "high"]
        low, mid, high = (point.fields["threshold"] for point in entry.points)
        assert low > mid > high and mid == values["algo"]["threshold"]
        assert entry.note.startswith(f"{name}: thresholds read off zoo/{name}/") and entry.middle == 1


def test_without_a_curve_there_is_one_point_and_it_is_said(tmp_path: Path) -> None:
    values = composed("algo=r2r")
    values["algo"]["weights"] = str(tmp_path / "router.safetensors")
    entry = entry_of(values)
    assert entry.points == [Point("uncalibrated", {})] and entry.middle == 0
    assert "r2r: there is no calibration curve" in entry.note and "python -m zoo.calibrate algo=r2r" in entry.note
    (tmp_path / "router.json").write_text(json.dumps(
        {"threshold": 0.5, "curve": CURVE, "models": {"small": "other", "large": "large"}}))
    assert "is of other models: other, large" in str(curve_of(values))
    (tmp_path / "router.json").write_text(json.dumps(
        {"threshold": 0.5, "curve": CURVE, "models": {"small": "small", "large": "large"}}))
    assert [point.fields["threshold"] for point in entry_of(values).points] == [0.9, 0.5, 0.1]


def test_every_point_of_every_algorithm_can_run() -> None:
    entries = {entry.name: entry for entry in plan(None, [])}
    assert set(entries) == {
        "slm_only", "r2r", "citer", "r_stitch", "collm", "me", "speculative", "glimp", "llm_only"}
    assert entries["me"].points[0].overrides() == ["algo.weights=[0.7,0.2,0.1]"]
    for name in ("slm_only", "llm_only"):
        assert [point.name for point in entries[name].points] == ["alone"]
    for name in ("me", "speculative", "glimp"):
        assert [point.name for point in entries[name].points] == ["low", "mid", "high"]


@pytest.mark.parametrize(("words", "said"), [
    (["algos=[r2r,nothing]"], r"algos=\['r2r', 'nothing'\]: allowed is a list of different ones of \['slm_only'"),
    (["algos=[r2r,r2r]"], "different ones"), (["requests=0"], "requests=0: allowed is a whole number >= 1"),
    (["algo.threshold=0.2"], "algo.threshold=0.2: allowed is algos="), (["load.nope=1"], "load.nope=1: unknown"),
    (["algos=me", "zoo.algos.me.low.weights=[1,2]"], r"algo.weights=.1.*2.*: allowed is a list of numbers"),
])
def test_bad_words(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        main(words)


def test_tables() -> None:
    entries = [Entry("r2r", [Point("low", {"threshold": 0.123456}), Point("mid", {})], "", [summary(), summary(2e3)]),
               Entry("me", [Point("mid", {"weights": [1, 2]})], "", [summary()])]
    frame = tabulate(entries)
    assert frame["setting"].tolist() == ["threshold=0.1235", "threshold=0.5", "weights=[1, 2]"]
    assert frame["accuracy_low"].tolist() == [0.8] * 3 and frame["output_throughput"].tolist() == [100, 2000, 100]
    words = readable(entries)
    assert words.loc[1, ["accuracy", "LLM tokens", "handoffs / 100 tokens", "tok/s", "valid"]].tolist() == [
        "90.0% [80.0%, 95.0%]", "10.0%", "12.30", "2,000", "no: measured 1 s"]
    assert not [line for line in origin(entries) if "differ" in line]
    entries[1].summaries = [summary(data_source="other")]
    assert origin(entries)[-1] == "not to be compared: the runs differ in data_source"


def test_the_command_runs_the_points_and_writes_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Sequence[str]] = {}

    def run(folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
        made[folder.name] = overrides
        folder.mkdir(parents=True)
        return summary() | ({"models": {"small": {}}} if "slm_only" in folder.name else {})

    monkeypatch.setattr(series, "run", run)
    main(["algos=[slm_only,me]", "requests=8", f"out={tmp_path}", f"profiles={tmp_path}/profiles", "load.seed=3"])
    assert list(made) == ["slm_only-alone", "me-low", "me-mid", "me-high"]
    assert made["me-mid"] == ["experiment=zoo", "~zoo", "algo=me", "algo.weights=[0.5,0.3,0.2]", "load.seed=3",
                              "load.num_requests=8"]
    written = (tmp_path / "zoo.md").read_text()
    assert written.count("\n| ") == 4 and "me: no routing profile: " in written and "slm_only: no" not in written
    monkeypatch.setattr("bench.zoo.profile_of_run", lambda folder: pytest.fail("profiles that nobody asked for"))
    main(["algos=[me]", "requests=8", f"out={tmp_path / 'smoke'}"])
    assert "no routing profile" not in (tmp_path / "smoke" / "zoo.md").read_text()
    assert (tmp_path / "zoo.csv").read_text().count("\n") == 5 and (tmp_path / "zoo.png").stat().st_size > 1000
