"""How far a check is: its lines, where nobody watches."""
from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench.verify import main, verify
from tests.bench.fake import job, until_told
from zoo.reference import Reference, Verdict

REQUESTS = 25


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of requests that take a second each to check."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    for module in ("bench.progress", "bench.verify"):
        monkeypatch.setattr(f"{module}.time", clock)

    def check(record: Any) -> Verdict:
        clock.now += 1
        return Verdict("equal")

    algorithm = SimpleNamespace(build=lambda: None)
    plan = SimpleNamespace(jobs=[job(i) for i in range(REQUESTS)],
                           cluster=SimpleNamespace(models=[], algorithms=[algorithm]))
    monkeypatch.setattr("bench.plan.prepare", lambda values, here: plan)
    monkeypatch.setattr(Reference, "load", lambda *words: SimpleNamespace(verify=check))
    row = {"id": "q", "error": None, "finish_reason": "stop", "token_ids": [5] * 4, "token_models": [0] * 4,
           "handoffs": 0}
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / "requests.jsonl").write_text((json.dumps(row) + "\n") * REQUESTS)
    return tmp_path


def test_a_line_after_two_seconds_and_every_ten_where_nobody_watches(run: Path) -> None:
    out = io.StringIO()
    assert len(verify(run, Console(file=out, width=200))) == REQUESTS
    assert out.getvalue().splitlines() == [f"{run}: {n}/25 requests, 4 tok/s, left: {25 - n} s" for n in (2, 12, 22)]


def test_it_says_that_the_reference_is_loaded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, load = io.StringIO(), Reference.load
    slowly = until_told(out, f"waiting for the reference of {run}: ", monkeypatch)
    monkeypatch.setattr(Reference, "load", lambda *words: (slowly(), load(*words))[1])
    assert len(verify(run, Console(file=out, width=200))) == REQUESTS


def test_the_table_is_all_that_goes_to_standard_output(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run)]) == 0
    said = capsys.readouterr()
    assert "25" in said.out and "requests, 4 tok/s" in said.err and "tok/s" not in said.out
    assert main([str(run / "nothing")]) == 2 and "error: run=" in capsys.readouterr().err
