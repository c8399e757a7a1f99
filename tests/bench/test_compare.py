from __future__ import annotations

import copy

import pytest

from bench.compare import compare, parse
from bench.systems.replicas import Replicas
from bench.validity import differences
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.server.frontend import EndEvent


def run(throughput: float, tpot: float, **provenance: object) -> dict:
    return {
        "workload": "aime", "engine": "torch", "sampling": {}, "hardware": {}, "algo": "r2r",
        "load": {"concurrency": 4, "num_requests": 9, "seed": 0},
        "output_throughput": throughput, "mean_tpot_ms": tpot, "mean_ttft_ms": 2.0, "mean_e2el_ms": 5.0,
        "steady": {"output_throughput": 2 * throughput}, "routing": {"llm_token_fraction": 0.1},
        "quality": {"value": 0.9, "ci95": [0.8, 1.0]},
        "total_output_tokens": 100, "validity": {"valid": True, "reasons": []},
        "provenance": {"models_hash": "m", "data_source": "d", "data_version": "1", "evidence": "measured",
                       "git_sha": "s", "cpu": "c", "gpu": None, **provenance},
    }


def test_ratios_are_paired_by_repeat():
    slow = [run(100, 2.0), run(50, 4.0), run(80, 2.0)]
    frame = compare({"a": slow, "b": [run(200, 1.0), run(110, 2.0), run(152, 2.0)]})
    assert frame["tok/s ratio"].tolist() == ["1.000 [1.000, 1.000]", "2.000 [1.900, 2.200]"]
    assert frame["tpot ms ratio"][1] == "0.500 [0.500, 1.000]"
    assert frame["tok/s"].tolist() == [80, 152]


def test_the_steady_window_stands_beside_what_is_predicted():
    runs = [run(100, 2.0), run(50, 4.0), run(80, 2.0)]
    for one, said in zip(runs, (210, 110, 200), strict=True):
        measured = one["steady"]["output_throughput"]
        one["routing"]["prediction"] = {"throughput": said, "ratio": measured / said}
        one["routing"]["prediction_in_service"] = {"throughput": None, "ratio": None}
        one["quality"] = None
    frame = compare({"a": runs})
    assert frame["steady tok/s"].tolist() == [160] and frame["predicted"].tolist() == [200]
    assert frame["steady/predicted"].tolist() == ["0.909 [0.800, 0.952]"]
    assert frame["predicted in service"].tolist() == [""]


def test_runs_of_other_data_are_not_compared():
    runs = [run(1, 1), run(2, 2, data_source="other")]
    assert differences(runs) == ["data_source"]
    other = copy.deepcopy(runs[0])
    other["load"]["concurrency"] = 8
    assert differences([runs[0], other]) == ["load.concurrency"] and not differences(runs[:1] * 3)


@pytest.mark.parametrize("words, said", [
    (["systems=[nothing]"], "systems=..nothing..: allowed is a list of different ones of"),
    (["systems=[tokenrouter,tokenrouter]"], "different"),
    (["repeats=0"], "repeats=0: allowed is a whole number >= 1"),
])
def test_bad_arguments(words: list[str], said: str):
    with pytest.raises(InputError, match=said):
        parse(words)


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
