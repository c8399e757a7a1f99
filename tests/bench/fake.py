"""A service in this process with a scripted course of events, records with scripted times, and a stand-in for
bench/run.py."""
from __future__ import annotations

import io
import json
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tokenrouter.waiting
from bench.records import Job, Record
from tokenrouter.core import FinishReason, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.server.frontend import EndEvent, Event, TokenEvent
from zoo.tasks.rows import Task


def info(name: str, params: int) -> ModelInfo:
    return ModelInfo(name, 512, 64, 1024, (2,), params, "float32", 4 * params, 64, "fake")


class FakeService:
    """Every request gets `answer`, one token a poll, the first half written by role 0 and the rest by role 1.

    `fails_at`: the poll that raises. `silent_from`: the poll from which nothing comes any more.
    """

    def __init__(
        self, answer: Sequence[int] = (5, 6, 7, 8), fails_at: BaseException | None = None, fail_poll: int = 5,
        silent_from: int | None = None,
    ) -> None:
        self.models = [info("small", 100), info("large", 1000)]
        self.answer, self.fails_at, self.fail_poll, self.silent_from = list(answer), fails_at, fail_poll, silent_from
        self.open: dict[str, int] = {}
        self.sent: list[tuple[list[int], SamplingParams]] = []
        self.most_open = self.polls = self.resets = 0
        self.aborted: list[str] = []
        self._ended: deque[EndEvent] = deque()

    def submit(self, prompt_ids: Sequence[int], sampling: SamplingParams, algorithm: str) -> str:
        rid = f"r{len(self.sent)}"
        self.sent.append((list(prompt_ids), sampling))
        self.open[rid] = 0
        self.most_open = max(self.most_open, len(self.open))
        return rid

    def glance(self) -> list[dict[str, Any]]:
        return [{"batch_size": 1.5, "threshold_B": 1}, {"batch_size": None, "threshold_B": 2}]

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self.aborted.append(rid)
        self._ended.append(EndEvent(rid, reason, self.open.pop(rid), 0, 0, None, time.perf_counter()))

    def poll(self, timeout_s: float) -> list[Event]:
        self.polls += 1
        events: list[Event] = []
        while self._ended:
            events.append(self._ended.popleft())
        if self.fails_at is not None and self.polls >= self.fail_poll and not self.aborted:
            raise self.fails_at
        if self.silent_from is not None and self.polls >= self.silent_from:
            return events
        for rid, position in list(self.open.items()):
            now = time.perf_counter()
            role = int(position >= len(self.answer) // 2)
            events.append(TokenEvent(rid, position, [self.answer[position]], role, now))
            self.open[rid] = position + 1
            if position + 1 == len(self.answer):
                del self.open[rid]
                events.append(EndEvent(rid, FinishReason.STOP, position + 1, 2, 1, None, now))
        return events

    def reset_stats(self) -> None:
        self.resets += 1

    def stats(self) -> list[dict[str, Any]]:
        return [report([6, 2], [4, 0], role=0), report([3, 1], [3, 1], role=1)]


def report(transitions: list[int], commits: list[int], role: int) -> dict[str, Any]:
    return {
        "duration_s": 2.0, "steps": 3, "busy_s": 1.0, "compute_s": 0.8, "step_ms": [1.0, 2.0, 3.0],
        "start_s": [0.0, 0.1, 0.2], "batch_size": [1, 2, 2], "tokens": [1, 2, 2], "thresholds": [1, 1, 1],
        "admission_ms": [0.5, 1.5],
        "transitions": {"r2r": transitions}, "commits": {"r2r": commits}, "role": {"r2r": role}, "threshold_B": 1,
        "timeouts": 0, "evictions": 0, "preemptions": 0, "engine": {},
    }


def job(index: int = 0, expected: str | None = "7", sample: int = 0) -> Job:
    task = Task(f"p{index}", [{"role": "user", "content": "?"}], expected)
    return Job(task, sample, [1, 2, 3], SamplingParams(seed=index, max_tokens=8))


def record(start: float, chunks: Sequence[tuple[float, int]], *, index: int = 0, end: float | None = None,
           reason: FinishReason = FinishReason.STOP, error: str | None = None, **more: Any) -> Record:
    """A finished request whose chunks arrived at the given times (seconds)."""
    count = sum(tokens for _, tokens in chunks)
    last = chunks[-1][0] if chunks else start
    return Record(job(index), start, list(chunks), list(range(count)), [0] * count, last if end is None else end,
                  reason, error=error, **more)


RUN = """
import json, os, shlex, signal, sys, time
from pathlib import Path
here, folder, got = Path(__file__).parent, Path(sys.argv[-1].removeprefix("hydra.run.dir=")), []
told = json.loads((here / "told.json").read_text())
summary = told["summary"]
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
with open(here / "made", "a") as made:
    print(folder.name, file=made)
if len((here / "made").read_text().splitlines()) == told["stop_at"]:
    for number in told["signals"]:
        os.kill(os.getppid(), number)
        until = time.monotonic() + 20
        while not got and time.monotonic() < until:
            time.sleep(0.01)
    time.sleep(20 if len(told["signals"]) > 1 else 0.2)  # to be killed; for a second signal that should not come
    summary["validity"]["reasons"] = ["interrupted"]
summary["provenance"]["command"] = shlex.join(["python", "bench/run.py", *sys.argv[1:-1]])
summary["signals"], summary["own group"] = got, os.getpgrp() == os.getpid()
folder.mkdir(parents=True, exist_ok=True)
(folder / "requests.jsonl").write_text(told["requests"])
(folder / "summary.json").write_text(json.dumps(summary))
sys.exit(130 if got else 0)
"""


class Program:
    """Stands for bench/run.py below the folder `root`. `stop_at`: the run that sends `signals` to who started it, one
    after the other, and then writes what it has, unless there is a second one."""

    def __init__(self, root: Path, summary: dict[str, Any], rows: Sequence[dict[str, Any]] = ()) -> None:
        self._folder = root / "bench"
        self._folder.mkdir()
        (self._folder / "run.py").write_text(RUN)
        self._told = {"summary": summary, "requests": "".join(json.dumps(row) + "\n" for row in rows)}

    def stops(self, stop_at: int = 0, signals: Sequence[int] = ()) -> None:
        told = self._told | {"stop_at": stop_at, "signals": list(signals)}
        (self._folder / "told.json").write_text(json.dumps(told))

    @property
    def made(self) -> list[str]:
        """The folders' names, in the order of the runs."""
        return (self._folder / "made").read_text().splitlines()


@contextmanager
def survives() -> Iterator[None]:
    """Signals that are not handled fail the test instead of ending it and all others."""

    def fail(number: int, frame: object) -> None:
        raise AssertionError(f"not handled: signal {number}")

    before = {number: signal.signal(number, fail) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def until_told(err: io.StringIO, line: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Something that takes until `err` gets a line that begins so, of which there are many at once."""
    monkeypatch.setattr(tokenrouter.waiting, "FIRST_S", 0.0)
    monkeypatch.setattr(tokenrouter.waiting, "EVERY_S", 0.01)

    def slowly() -> None:
        seen, until = len(err.getvalue()), time.monotonic() + 20
        while line not in err.getvalue()[seen:]:
            assert time.monotonic() < until, f"not told: {line}"
            time.sleep(0.002)

    return slowly
