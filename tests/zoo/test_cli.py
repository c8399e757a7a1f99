"""What the zoo's commands say while they work."""
from __future__ import annotations

import re
import time

import pytest

import tokenrouter.waiting
from zoo.cli import progress_bar


def test_lines_now_and_then_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tokenrouter.waiting, "FIRST_S", 0.01)
    monkeypatch.setattr(tokenrouter.waiting, "EVERY_S", 0.01)
    said, until = "", time.monotonic() + 20
    with progress_bar() as bar:
        bar.add_task("over", total=2, completed=2)
        task = bar.add_task("threshold 0.5 [a]", total=4)
        while "left" not in said and time.monotonic() < until:
            time.sleep(0.01)
            bar.advance(task, 1 if bar.tasks[1].completed < 3 else 0)
            captured = capsys.readouterr()
            said += captured.err
            assert not captured.out
    lines = said.splitlines()
    assert lines[0].startswith("threshold 0.5 [a]: ") and re.fullmatch(r"threshold .*: [123]/4, left: \d+ s", lines[-1])
    assert not any(line.startswith("over") for line in lines) and "\x1b" not in said


def test_nothing_is_said_of_what_is_over_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with progress_bar() as bar:
        bar.advance(bar.add_task("labels", total=4))
    assert capsys.readouterr().err == "" and time.monotonic() - began < tokenrouter.waiting.FIRST_S / 2


@pytest.mark.parametrize("no_color", [False, True])
def test_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_color: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    with progress_bar() as bar:
        bar.advance(bar.add_task("labels", total=4))
    captured = capsys.readouterr()
    assert "labels" in captured.err and "1/4" in captured.err and not captured.out
    assert bool(re.search(r"\x1b\[[\d;]*3[0-8]", captured.err)) is not no_color
