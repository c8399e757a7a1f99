"""bench/counts.py says how far it is."""
from __future__ import annotations

import re

import pytest

import bench.progress
from bench.counts import main


def test_lines_where_nobody_watches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench.progress, "FIRST_S", 0.0)
    monkeypatch.setattr(bench.progress, "EVERY_S", 0.0)
    main(["requests=60"])
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("counting: ")]
    line = re.compile(r"counting: \d+/(60|100) requests, [\d,]+ tok/s(, left: \d+ s)?")
    assert lines and all(map(line.fullmatch, lines))
    assert captured.out.startswith("100 requests, 10 aborts asked for")
