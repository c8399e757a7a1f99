"""`tokenrouter plan` as scripts and people see it."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.throughput.systems import R2R
from tokenrouter.cli import main
from tokenrouter.throughput.show import chart

SUMMARY = {
    "load": {"concurrency": 8},
    "steady": {"output_throughput": 372.5},
    "routing": {
        "P": [[0.6501, 0.35], [1, 0]],
        "C": [[1, 0], [1, 0]],
        "step_ms": {"small": {"mean": 6.04}, "large": {"mean": 27.93}},
        "threshold_B": {"small": 1, "large": 5},
    },
}
GEOMETRIC = [0.35 * 0.65**n for n in range(40)]
PROFILE = {"P": R2R["P"], "C": R2R["C"], "run_lengths": [GEOMETRIC, None], "date": "2026-01-01"}


def written(folder: Path, content: object) -> str:
    path = folder / "input.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["plan", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out)
    assert list(report) == ["throughput", "best", "eager", "states", "method"]
    return report


def test_json_without_b(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = planned(capsys, "--spec", written(tmp_path, R2R))
    assert report["throughput"] is None
    assert report["best"] == {"B": [1, 3], "throughput": pytest.approx(207.95404117218087, rel=1e-9)}
    assert report["eager"] == pytest.approx(187.18965127079935, rel=1e-9)
    assert (report["states"], report["method"]) == (14, "exact-reduced")


def test_json_with_b_and_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = planned(capsys, "--spec", written(tmp_path, R2R | {"B": [1, 1]}))
    assert report["throughput"] == report["eager"]
    assert report["states"] == 715
    report = planned(capsys, "--spec", written(tmp_path, R2R | {"B": [1, 3], "hold": [0]}))
    assert report["throughput"] == pytest.approx(208.56, abs=0.005)
    assert report["eager"] == pytest.approx(187.18965127079935, rel=1e-9)


@pytest.mark.parametrize(("content", "message"), [
    (R2R | {"B": [4, 4]}, "B: [4, 4] can deadlock"),
    (R2R | {"threshold": 3}, "threshold: unknown field"),
    ({"N": 4}, "input.json: P, C, L_ms, delta_ms: missing"),
    ("{broken", "is not JSON"),
    ("[1, 2]", "holds a list"),
    (json.dumps(R2R).replace("0.65", "NaN"), "P[0][0]: nan"),
])
def test_bad_specs(content: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--spec", written(tmp_path, content), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [
    [],
    ["prophesy"],
    ["plan"],
    ["plan", "--spec", "no-such-file.json"],
    ["plan", "--spec", "."],
    ["plan", "--spec", "a.json", "--profile", "b.json"],
    ["plan", "--N", "four", "--p", "0.35", "--L", "6,27.9"],
    ["plan", "--N", "4", "--p", "1.35", "--L", "6,27.9"],
    ["plan", "--N", "4", "--p", "0.35", "--L", "6,27.9", "--fix", "one"],
    ["plan", "--N", "4", "--p", "0.35", "--L", "6,27.9", "--run-lengths"],
    ["plan", "--N", "4", "--p", "0.35", "--L", "6,27.9", "--plot", "no/such/folder.png"],
])
def test_bad_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(("arguments", "message"), [
    ("", "--N, --p (or --P and --C), --L: missing; for example: tokenrouter plan --N 4 --p 0.35 --L 6.0,27.9"),
    ("--N 4 --C [[1,0],[1,0]]", "--P, --L: missing; "),
    ("--N 0 --p .35 --L 6,27.9", "--N: 0 is not a whole number"),
    ("--N 4 --p .35 --L 6.05,27.9", "--L[0]: 6.05 ms is not a multiple of --delta-ms = 0.1"),
    ("--N 4 --p .35 --L 6,7,8", "--p: 2 rows of [2] entries; --L gives 3 models"),
    ("--N 4 --p .35 --L 6,27.9 --fix 5=1", "--fix: there is no model 5"),
])
def test_options_are_named_as_they_are_given(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments.split()]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_numbers_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    report = planned(capsys, "--N", "8", "--p", ".35", "--L", "6.0,27.9", "--B", "1,5", "--fix", "0=1")
    assert report["best"]["B"] == [1, 5]
    assert report["throughput"] == report["best"]["throughput"]
    long = planned(capsys, "--N", "8", "--P", "[[0.65, 0.35], [1, 0]]", "--C", "[[1, 0], [1, 0]]", "--L", "[6.0, 27.9]")
    assert long["best"] == report["best"]


def test_a_runs_summary_and_its_own_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, SUMMARY)
    report = planned(capsys, "--summary", path)
    # The row of P was rounded, the latencies are brought to multiples of the quantum: 6.0 and 27.9 ms.
    assert report["throughput"] == pytest.approx(399.05, rel=1e-3)
    assert planned(capsys, "--summary", path, "--N", "4", "--B", "1,3")["throughput"] == pytest.approx(207.95, rel=1e-3)
    assert main(["plan", "--summary", path]) == 0
    assert "measured 372.50 tok/s, 0.933 x predicted" in capsys.readouterr().out


def test_a_summary_without_routing_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--summary", written(tmp_path, {"routing": {"P": None, "step_ms": {}}, "load": {}})]) == 2
    assert "has no field P" in capsys.readouterr().err


def test_a_routing_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, PROFILE)
    geometric = planned(capsys, "--profile", path, "--N", "4", "--L", "6.0,27.9")
    assert (geometric["best"]["B"], geometric["method"]) == ([1, 3], "exact-reduced")
    measured = planned(capsys, "--profile", path, "--N", "4", "--L", "6.0,27.9", "--run-lengths")
    assert (measured["states"], measured["method"]) == (None, "simulation")
    assert measured["best"]["throughput"] == pytest.approx(geometric["best"]["throughput"], rel=0.01)


def test_text_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "curve.png"
    assert main(["plan", "--N", "4", "--p", "0.35", "--L", "6.0,27.9", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "T over B_1, where B_0 = 1" in out
    assert "optimal B = [1, 3]  207.95 tok/s (exact-reduced), 1.111 x eager" in out
    assert "N = 5" in out and "L_1 = 33.5 ms" in out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_chart_shows_the_shape() -> None:
    rows = chart({1: 10.0, 2: 20.0, 3: 15.0}, height=4)
    assert [row.count("█") for row in rows] == [2, 2, 4, 4, 0]
    assert rows[-1].split() == ["└", "1", "2", "3"]
    assert len(chart({1: 5.0})) == 9
