from __future__ import annotations

import io
import re
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

import bench.progress
import tokenrouter.waiting
from bench.progress import ProgressView, waiting
from bench.records import Progress
from tokenrouter.waiting import Lines


def shown(terminal: bool) -> str:
    out = io.StringIO()
    with ProgressView(Console(file=out, force_terminal=terminal, width=120, color_system=None)) as view:
        view(Progress("warming up", 0, 4, 4, 0, 0.5))
        view(Progress("warming up", 1, 4, 3, 10, 1.0))
        view(Progress("measuring", 5, 20, 4, 3000, 2.0))
        view(Progress("measuring", 5, 20, 0, 3000, 2.0, 90.0))
    return out.getvalue()


def test_plain_lines_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.progress, "FIRST_S", 0.0)
    monkeypatch.setattr(bench.progress, "EVERY_S", 0.0)
    assert shown(terminal=False).splitlines() == [
        "warming up: 0/4 requests, 0 tok/s", "warming up: 1/4 requests, 10 tok/s, left: 3 s",
        "measuring: 5/20 requests, 1,500 tok/s, left: 6 s", "measuring: 5/20 requests, 1,500 tok/s, left: 90 s"]


def test_lines_come_now_and_then_only() -> None:
    assert shown(terminal=False) == ""


def test_a_bar_for_the_phase_on_a_terminal() -> None:
    last = shown(terminal=True).rsplit("measuring", 1)[1]
    assert "5/20" in last and "1,500 tok/s" in last


def test_who_waits_is_told_for_what_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenrouter.waiting, "FIRST_S", 0.0)
    monkeypatch.setattr(tokenrouter.waiting, "EVERY_S", 0.01)
    out, until = io.StringIO(), time.monotonic() + 20
    with waiting(Console(file=out), "small, large to start"):
        while out.getvalue().count("\n") < 3 and time.monotonic() < until:
            time.sleep(0.01)
    lines = out.getvalue().splitlines()
    assert len(lines) >= 3 and all(re.fullmatch(r"waiting for small, large to start: \d+ s", line) for line in lines)
    terminal = io.StringIO()
    with waiting(Console(file=terminal, force_terminal=True, width=120, color_system=None), "small to start"):
        pass
    assert "waiting for small to start" in terminal.getvalue()


def test_the_first_line_comes_after_two_seconds_and_another_every_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) > 2

    lines = Lines(lambda _: None)
    monkeypatch.setattr(lines, "_end", SimpleNamespace(wait=wait, set=lambda: None))
    with lines:
        pass
    assert pauses == [2.0, 10.0, 10.0]
