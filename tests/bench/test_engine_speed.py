"""bench/engine_speed.py says how far it is."""
from __future__ import annotations

import re
import sys

import pytest

import tokenrouter.waiting
from bench.engine_speed import main
from zoo.models import path


def test_lines_where_nobody_watches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tokenrouter.waiting, "FIRST_S", 0.01)
    monkeypatch.setattr(tokenrouter.waiting, "EVERY_S", 0.01)
    monkeypatch.setattr(sys, "argv", ["engine_speed.py", str(path("small")), "--context", "8", "--batches", "1,2",
                                      "--rounds", "20"])
    main()
    captured = capsys.readouterr()
    for line in (r"engines: [0-2]/3(, left: \d+ s)?", r"turns: [1-3]?\d/40(, left: \d+ s)?"):
        assert re.search(f"^{line}$", captured.err, re.MULTILINE), captured.err
    assert "transformers" in captured.out and "turns" not in captured.out
