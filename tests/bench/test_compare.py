from __future__ import annotations

import copy
import json
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import series
from bench.compare import compare, draw, folder_name, main, parse
from bench.paired import Paired
from bench.systems.replicas import Replicas
from bench.validity import differences, unequal_lengths
from tests.bench.fake import Program, survives
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.server.frontend import EndEvent


def run(throughput: float, tpot: float, **provenance: object) -> dict:
    return {
        "workload": "aime", "engine": "torch", "sampling": {}, "hardware": {}, "algo": "r2r",
        "load": {"concurrency": 4, "num_requests": 9, "seed": 0}, "duration_s": 60.0,
        "output_throughput": throughput, "mean_tpot_ms": tpot, "mean_ttft_ms": 2.0, "mean_e2el_ms": 5.0,
        "steady": {"output_throughput": 2 * throughput}, "routing": {"llm_token_fraction": 0.1},
        "quality": {"value": 0.9, "ci95": [0.8, 1.0]},
        "completed": 9, "total_output_tokens": 100, "validity": {"valid": True, "reasons": []},
        "provenance": {"models_hash": "m", "data_source": "d", "data_version": "1", "evidence": "measured",
                       "git_sha": "s", "dirty": False, "cpu": "c", "gpu": None, "date": "2026-01-01T00:00:00+00:00",
                       **provenance},
    }


REQUESTS = 40


def made(folder: Path, runs: list[dict], times: list[float], right: float = 1.0) -> Paired:
    """Repeats whose requests write 10 tokens each in about this many ms, as hard problems in each of them."""
    folders = []
    for repeat, time in enumerate(times):
        hard = np.random.default_rng(0).uniform(0.5, 1.5, REQUESTS)
        rows = [{"id": f"{i}", "sample": 0, "output_tokens": 10, "ttft_ms": time * hard[i] / 10, "error": None,
                 "e2el_ms": time * hard[i], "grade": i < right * REQUESTS} for i in range(REQUESTS)]
        folders.append(folder / f"{repeat}")
        folders[-1].mkdir(parents=True)
        (folders[-1] / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Paired(folders, runs)


def test_ratios_are_paired_by_repeat_and_by_request(tmp_path: Path):
    runs = [[run(100, 2.0), run(50, 4.0), run(80, 2.0)], [run(200, 1.0), run(110, 2.0), run(152, 2.0)]]
    paired = [made(tmp_path / "a", runs[0], [100.0, 200.0, 125.0]), made(tmp_path / "b", runs[1], [50.0, 91.0, 66.0])]
    frame = compare([{"system": "a"}, {"system": "b"}], runs, paired)
    assert frame["tok/s ratio"][0] == "1.000 [1.000, 1.000]" and frame["tok/s"].tolist() == [80, 152]
    # What problems and repeats share cancels out: the interval is that of the repeats' ratios 2.0, 2.2 and 1.9.
    median, low, high = map(float, re.findall(r"[\d.]+", frame["tok/s ratio"][1]))
    assert median == 2.0 and 1.9 <= low < 2.0 < high <= 2.2
    assert frame["tpot ms ratio"][1].startswith("0.500 [0.4")
    assert frame["quality difference"].tolist() == ["0.000 [0.000, 0.000]"] * 2


def test_answers_that_come_in_one_piece_have_no_time_per_token(tmp_path: Path):
    runs = [[run(100, 2.0)], [run(100, 2.0) | {"mean_tpot_ms": None}]]
    paired = [made(tmp_path / "a", runs[0], [100.0]), made(tmp_path / "b", runs[1], [100.0])]
    row = compare([{"system": "a"}, {"system": "b"}], runs, paired).iloc[1]
    assert row[["tpot ms", "tpot ms ratio"]].isna().all() and row["e2el ms ratio"].startswith("1.000 ")


def at(minute: int, **provenance: object) -> dict:
    return run(100, 2.0, date=f"2026-01-01T00:{minute:02}:00+00:00", **provenance)


@pytest.mark.parametrize(("second", "said"), [
    ([at(2), at(4), at(6)], "yes"),
    ([at(2), at(4)], "2 repeats, comparisons need 3"),
    ([at(2), at(6), at(7)], "not in turns"),
    ([at(2), at(4), at(45)], "39 minutes between turns of a round, allowed are 30"),
    ([at(2), at(4, dirty=True), at(6)], "code that is not committed"),
    ([at(2), at(4) | {"validity": {"valid": False, "reasons": ["too short"]}}, at(45, dirty=True)],
     "too short; 39 minutes between turns of a round, allowed are 30; code that is not committed"),
])
def test_a_comparison_is_valid_of_three_turns_of_committed_code(tmp_path: Path, second: list[dict], said: str):
    """Also the rows beside the one that is to blame, whose ratios are no better; not for what is of one run alone."""
    runs = [[at(1), at(3), at(5)][:len(second)], second]
    paired = [made(tmp_path / name, one, [100.0] * len(one)) for name, one in zip("ab", runs, strict=True)]
    frame = compare([{"system": "a"}, {"system": "b"}], runs, paired)
    assert frame["valid"].tolist() == [said.removeprefix("too short; "), said]


def test_an_interval_is_as_wide_as_the_requests_differ(tmp_path: Path):
    """Against the textbook's interval of a mean of paired differences."""
    runs = [run(100, 2.0)]
    base, own = made(tmp_path / "a", runs, [100.0]), made(tmp_path / "b", runs, [100.0], right=0.75)
    interval = own.difference(base)
    half = 1.96 * np.sqrt(0.75 * 0.25 / REQUESTS)
    assert (interval.low, interval.high) == pytest.approx((-0.25 - half, -0.25 + half), abs=0.03)


def test_the_steady_window_stands_beside_what_is_predicted(tmp_path: Path):
    runs = [run(100, 2.0), run(50, 4.0), run(80, 2.0)]
    for one, said in zip(runs, (210, 110, 200), strict=True):
        measured = one["steady"]["output_throughput"]
        one["routing"]["prediction"] = {"throughput": said, "ratio": measured / said}
        one["routing"]["prediction_in_service"] = {"throughput": None, "ratio": None}
        one["quality"] = None
    frame = compare([{"system": "a"}], [runs], [made(tmp_path, runs, [1.0, 2.0, 3.0])])
    assert frame["steady tok/s"].tolist() == [160] and frame["predicted"].tolist() == [200]
    assert frame["steady/predicted"].tolist() == ["0.909 [0.800, 0.952]"]
    assert frame["predicted in service"].tolist() == [""] and frame["quality difference"].tolist() == [None]


def test_what_has_several_values_is_compared(tmp_path: Path):
    options, axes, overrides = parse(["algo=r2r", "load.via=inproc,http", "batching.B=[1,2],[1,3]", "repeats=1"])
    assert overrides == ["algo=r2r"] and options.repeats == 1
    assert axes == {"system": ["tokenrouter"], "load.via": ["inproc", "http"], "batching.B": ["[1,2]", "[1,3]"]}
    assert folder_name({"system": "tokenrouter", "batching.B": "[1,2]"}) == "tokenrouter-_1_2_"
    with pytest.raises(InputError, match=r"system=std,llm_only: allowed is systems=\[std,llm_only\]"):
        parse(["system=std,llm_only"])


def test_runs_that_write_more_are_not_compared():
    runs = [run(1, 1), run(2, 2)]
    assert not unequal_lengths(runs)
    runs[1]["total_output_tokens"] = 106
    assert unequal_lengths(runs) == ["output tokens (100 to 106; allowed is a difference of 5%)"]


def test_the_picture_has_a_bar_for_each(tmp_path: Path):
    runs = [[run(100, 2.0)], [run(200, 1.0)]]
    paired = [made(tmp_path / name, one, [100.0]) for name, one in zip("ab", runs, strict=True)]
    draw(compare([{"system": "a"}, {"system": "b"}], runs, paired), 1, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_other_data_are_not_compared():
    runs = [run(1, 1), run(2, 2, data_source="other")]
    assert differences(runs) == ["data_source"]
    other = copy.deepcopy(runs[0])
    other["load"]["concurrency"] = 8
    assert differences([runs[0], other]) == ["load.concurrency"] and not differences(runs[:1] * 3)


@pytest.mark.parametrize(("stop_at", "rows"), [(4, 2), (2, 1)])
def test_what_is_stopped_shows_what_is_finished_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop_at: int, rows: int
):
    rows_of_a_run = [{"id": "1", "sample": 0, "output_tokens": 10, "ttft_ms": 1.0, "error": None, "e2el_ms": 9.0,
                      "grade": True}]
    program, out = Program(tmp_path, run(100, 2.0), rows_of_a_run), tmp_path / "out"
    monkeypatch.setattr(series, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare.py", "systems=[llm_only,tokenrouter]", "repeats=2", f"out={out}"])
    program.stops(stop_at, [signal.SIGINT])
    with survives():
        assert series.command(main) == 130
    said = capsys.readouterr()
    assert said.err == (f"stopped: {stop_at - 1} of 4 runs are finished and stay in {out}; the same command with "
                        f"out={out} goes on, within 30 minutes if the round is to be valid\n")
    assert f"after {stop_at - 1} of 4 runs: " in said.out and said.out.count("│ r2r") == rows
    program.stops()
    with survives():
        assert series.command(main) == 0
    turns = ["0-llm_only", "0-tokenrouter", "1-llm_only", "1-tokenrouter"]
    assert program.made == [*turns[:stop_at], *turns[stop_at - 1:]]
    said = capsys.readouterr()
    assert said.out.startswith("turn 1 of 4: llm_only (repeat 1), there already\n") and said.out.count("│ r2r") == 2
    compared = json.loads((out / "comparison.json").read_text())
    assert [row["valid"] for row in compared] == ["2 repeats, comparisons need 3"] * 2


@pytest.mark.parametrize("words, said", [
    (["systems=[nothing]"], "systems=..nothing..: allowed is a list of different ones of"),
    (["systems=[tokenrouter,tokenrouter]"], "different"),
    (["repeats=0"], "repeats=0: allowed is a whole number >= 1"),
    (["csv=no_folder/a.csv"], "csv=no_folder/a.csv: allowed is a file in a folder that is there"),
    (["plot=a.txt"], "plot=a.txt: allowed are files that end in .*.png"),
])
def test_bad_arguments(words: list[str], said: str):
    with pytest.raises(InputError, match=said):
        parse(words)


def test_what_would_be_refused_is_said_before_others_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(words: list[str]) -> int:
        raise AssertionError(words)

    monkeypatch.setattr(series, "_execute", never)
    with pytest.raises(InputError, match="system=std_vllm: vLLM's API does not give the hidden states"):
        main(["systems=[tokenrouter,std_vllm]", "algo=citer"])
    with pytest.raises(InputError, match=r"algo.threshold=-1"):
        main(["systems=[tokenrouter]", "algo=r2r", "algo.threshold=0.5,-1"])


class TwoCopies:
    """Of the front end, what Replicas asks of it."""

    def __init__(self) -> None:
        self.models = ["info", "info"]
        self.sent: list[str] = []
        self.events: list[EndEvent] = []

    def submit(self, prompt_ids, sampling, algorithm: str) -> str:
        self.sent.append(algorithm)
        return f"r{len(self.sent)}"

    def poll(self, timeout_s: float):
        return self.events

    def stats(self):
        report = {"duration_s": 2.0, "busy_s": 1.0, "step_ms": [1.0], "threshold_B": 1, "engine": {"steps": 3}}
        return [report | {"role": {name: 0}, "transitions": {name: [n]}, "commits": {name: [n]}}
                for name, n in (("x", 2), ("x#1", 5))]


def test_replicas_share_the_load_and_report_as_one():
    frontend = TwoCopies()
    replicas = Replicas(frontend, ["x", "x#1"])  # type: ignore[arg-type]
    rids = [replicas.submit([1], SamplingParams(0, 1), "x") for _ in range(3)]
    frontend.events = [EndEvent(rids[1], "stop", 1, 0, 0, None, 0.0)]  # type: ignore[arg-type]
    replicas.poll(0.0)
    replicas.submit([1], SamplingParams(0, 1), "x")
    assert frontend.sent == ["x", "x#1", "x", "x#1"]
    [report] = replicas.stats()
    assert report["step_ms"] == [1.0, 1.0] and report["duration_s"] == 4.0 and report["engine"] == {"steps": 6}
    assert report["transitions"] == {"x": [7]} and report["role"] == {"x": 0} and report["threshold_B"] == 1
