"""Emulated steps on a scripted clock: how long they take, alone and shared; around them an engine like any."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tests.toy
from tests.toy import ToyCluster, toy_algorithm
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.engine import clock, load_engine
from tokenrouter.engine.base import Row
from tokenrouter.engine.clock import Board, EmulatedDevice, wait_until
from tokenrouter.engine.emulated import VOCAB_SIZE, EmulatedEngine, EmulatedModel

TICK, LATE = 1e-6, 7e-5  # what a look at the clock takes; how late a sleep ends


class Clock:
    """Stands in for the module time. `events`: what happens at which moment, in order."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, 0.0
        self.events: list[tuple[float, Callable[[float], None]]] = []

    def perf_counter(self) -> float:
        self.now += TICK
        self._catch_up()
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + LATE
        self.slept += seconds
        self._catch_up()

    def _catch_up(self) -> None:
        while self.events and self.events[0][0] <= self.now:
            moment, event = self.events.pop(0)
            event(moment)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(clock, "time", made)
    return made


def engine(pages: int = 100, **model: Any) -> EmulatedEngine:
    models = {"m": {"latency_ms": 6.0, **model}}
    return EmulatedEngine("m", capacity_tokens=16 * pages, models=models, realtime=False)


def test_latency_by_batch_size_and_appended_tokens() -> None:
    assert EmulatedModel(6.0).step_ms(9, 500) == 6.0
    table = EmulatedModel([(1, 6.0), (4, 9.0), (8, 10.0)], extend_ms_per_token=0.5)
    assert [table.step_ms(b, b) for b in (1, 2, 4, 6, 8, 50)] == [6.0, 7.0, 9.0, 9.5, 10.0, 10.0]
    assert table.step_ms(4, 10) == 9.0 + 6 * 0.5
    assert EmulatedModel([(2, 6.0), (4, 8.0)]).step_ms(1, 1) == 6.0


@pytest.mark.parametrize("seconds", [1e-5, 2e-4, 6e-3, 27.9e-3])
def test_a_wait_ends_on_time_and_is_spent_asleep(time: Clock, seconds: float) -> None:
    deadline = time.now + seconds
    wait_until(deadline)
    assert deadline <= time.now <= deadline + 2 * TICK
    assert time.slept >= seconds - 2.1e-4


def test_a_wait_for_what_is_over_does_not_wait(time: Clock) -> None:
    before = time.now
    wait_until(before - 1)
    assert time.now <= before + 3 * TICK


def test_a_step_lasts_as_long_as_the_model_would(time: Clock) -> None:
    made = engine(latency_ms=[[1, 6.0], [2, 8.0]], extend_ms_per_token=0.1)
    for rid in ("a", "b"):
        assert made.open(rid, list(range(20))) == 0
        assert made.allocate(rid, 20)
    before = time.now
    output = made.step([Row("a", range(20), 0), Row("b", range(20))])
    assert time.now - before < 5 * TICK, "there is time for other work"
    took = output.finish()
    assert time.now - before == pytest.approx(8.0e-3 + 38 * 0.1e-3, abs=5 * TICK)
    assert took == pytest.approx(11.8e-3, abs=5 * TICK)
    assert output.logits.shape == (1, VOCAB_SIZE) and output.hidden.shape == (1, 1)


def shared(time: Clock, path: Path, others: list[tuple[float, float]], seconds: float, factor: float = 1.5) -> float:
    """How long a step takes while other processes run in the given intervals, ms from its start."""
    start = time.now
    device = EmulatedDevice("d", factor, Board(path))
    for begin, end in others:
        board = Board(path)
        time.events += [(start + begin / 1e3, board.begin), (start + end / 1e3, board.end)]
    time.events.sort(key=lambda event: event[0])
    time._catch_up()
    device.begin(start)
    return device.finish(start, seconds) * 1e3


@pytest.mark.parametrize(("others", "expected"), [
    ([], 10.0),
    ([(0, 100)], 15.0),
    ([(2, 6)], 10 + 4 * (1 - 1 / 1.5)),
    ([(-3, 3)], 10 + 3 * (1 - 1 / 1.5)),
    ([(-5, -1)], 10.0),
    ([(9, 100)], 9 + 1.5),
    ([(2, 6), (4, 8)], 10 + 6 * (1 - 1 / 1.5)),  # two at once are no worse than one
    ([(2, 2.2)], 10 + 0.2 * (1 - 1 / 1.5)),  # gone before anybody looked
])
def test_contention_is_charged_for_the_time_shared(time: Clock, tmp_path: Path, others: list[tuple[float, float]],
                                                   expected: float) -> None:
    assert shared(time, tmp_path / "board", others, 10e-3) == pytest.approx(expected, abs=0.02)


def test_a_killed_process_does_not_slow_others_for_ever(time: Clock, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os, sys; from pathlib import Path; from tokenrouter.engine.clock import Board\n"
         "Board(Path(sys.argv[1])).begin(1.0); os._exit(0)", str(tmp_path / "board")], check=False)
    assert done.returncode == 0
    assert (tmp_path / "board").read_bytes().strip(b"\0"), "it left its mark"
    assert shared(time, tmp_path / "board", [], 10e-3) == pytest.approx(10.0, abs=0.02)


def test_alone_a_model_needs_no_board(time: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.tempfile, "gettempdir", lambda: str(tmp_path))
    EmulatedDevice("cpu")
    assert not list(tmp_path.iterdir())
    EmulatedDevice("cuda:0", 1.5)
    assert [file.name.rpartition("-")[2] for file in tmp_path.iterdir()] == ["0"]


def test_requests_end_by_their_length_and_leave_nothing(time: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the real scheduler, in a pool that is too small for all requests."""
    monkeypatch.setattr(tests.toy, "ToyEngine", lambda model, pages: engine(pages))
    algorithm = toy_algorithm(2)
    cluster = ToyCluster([algorithm], models=2, pages=12, seed=1)
    samplings = [SamplingParams(n, 10 + n, ignore_eos=True) for n in range(12)]
    rids = [cluster.frontend.submit([7 + n] * (3 + n), sampling, "toy") for n, sampling in enumerate(samplings)]
    cluster.run()
    assert [len(cluster.output(rid)[0]) for rid in rids] == [10 + n for n in range(12)]
    assert {cluster.output(rid)[2] for rid in rids} == {"length"}
    assert sum(s.scheduler.counters.evictions + s.scheduler.counters.preemptions for s in cluster.subservers) > 0
    cluster.check_idle()


def test_the_prefix_cache_is_a_real_one(time: Clock) -> None:
    made = engine()
    ids = list(range(31)) * 2
    assert made.open("a", ids) == 0 and made.allocate("a", 62)
    made.step([Row("a", ids)])
    made.truncate("a", 50)
    assert made.kv_len("a") == 50
    made.free("a", ids)
    assert made.open("b", ids) == 48
    made.check(["b"])
    made.free("b")
    made.flush_cache()
    assert made.open("c", ids) == 0


@pytest.mark.parametrize(("options", "said"), [
    ({"models": {}}, "models.roles.*.path='m': allowed is a model that engine.options.models describes"),
    ({"models": {"m": {"latency_ms": 0}}}, "engine.options.models.m.latency_ms=0"),
    ({"models": {"m": {"latency_ms": "6"}}}, "engine.options.models.m.latency_ms='6'"),
    ({"models": {"m": {"latency_ms": []}}}, "engine.options.models.m.latency_ms=[]"),
    ({"models": {"m": {"latency_ms": [[2, 6.0], [1, 7.0]]}}}, "engine.options.models.m.latency_ms=[(2, 6.0), (1"),
    ({"models": {"m": {"latency_ms": 6.0, "extend_ms_per_token": -1}}},
     "engine.options.models.m.extend_ms_per_token=-1"),
    ({"models": {"m": {"latency_ms": float("nan")}}}, "engine.options.models.m.latency_ms=nan: allowed is a number"),
    ({"models": {"m": {"latency_ms": float("inf")}}}, "engine.options.models.m.latency_ms=inf: allowed is a number"),
    ({"models": {"m": {"latency_ms": [[2, -7.0]]}}}, "engine.options.models.m.latency_ms=[[2, -7.0]]: allowed is "),
    ({"models": {"m": {"latency_ms": [[0, 6.0]]}}}, "engine.options.models.m.latency_ms=[[0, 6.0]]: allowed is "),
    ({"models": {"m": {"speed": 6.0, "latency_ms": 1}}}, "engine.options.models.m.speed=6.0: unknown; allowed is "),
    ({"models": {"m": {}}}, "engine.options.models.m.latency_ms: missing"),
    ({"models": {"m": {"latency_ms": 1}}, "contention": 0.5}, "engine.options.contention=0.5"),
    ({"models": {"m": {"latency_ms": 1}}, "nope": 1}, "engine.options.nope=1: unknown; allowed is one of models, "),
    ({"realtime": False}, "engine.options.models: missing"),
    ({"models": {"m": {"latency_ms": 1}}, "capacity_tokens": 8}, "engine.capacity_tokens=8: allowed is a page (16)"),
])  # fmt: skip
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_engine("emulated", path="m", **{"realtime": False, **options})
    assert str(caught.value).startswith(said)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed by Linux only")
def test_all_threads_get_a_real_time_priority_where_that_is_allowed() -> None:
    """Above all those that carry messages: they must run while the model's thread spins."""
    done = subprocess.run([sys.executable, "-c", HURRIED], capture_output=True, text=True, check=True)
    asked, own, other = done.stdout.split()
    if asked == "refused":
        assert own == other == "0"
    else:
        assert 0 < int(own) < int(other)


HURRIED = """
import os, threading
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    print("allowed")
except OSError:
    print("refused")
event = threading.Event()
thread = threading.Thread(target=event.wait)
thread.start()
from tokenrouter.engine.emulated import EmulatedEngine
EmulatedEngine("m", models={"m": {"latency_ms": 1.0}})
for each in (threading.get_native_id(), thread.native_id):
    print(os.sched_getparam(each).sched_priority)
event.set()
"""
