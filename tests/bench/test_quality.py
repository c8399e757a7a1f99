"""bench/quality.py on the embedded models, interrupted and given again."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bench.quality
import zoo.quality

COMMAND = ["problems=2", "algos=entropy", "workload.max_tokens=20", "out=out.json"]


def test_an_interrupted_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    measure, left = zoo.quality.measure, [2]

    def some(*given: Any) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return measure(*given)

    monkeypatch.setattr(bench.quality, "measure", some)
    with pytest.raises(KeyboardInterrupt):
        bench.quality.main(COMMAND)
    assert not Path("out.json").exists() and len(list(Path("results/runs").iterdir())) == 1
    left[0] = 1
    bench.quality.main(COMMAND)
    found = json.loads(Path("out.json").read_text())
    assert not list(Path("results/runs").iterdir())
    left[0] = 2
    with pytest.raises(KeyboardInterrupt):  # what is written is measured anew
        bench.quality.main(COMMAND)
    left[0] = 1
    bench.quality.main(COMMAND)
    assert json.loads(Path("out.json").read_text()) == found
    rows = found["algorithms"]
    assert list(rows) == ["slm_only", "llm_only", "entropy", "oracle"]
    assert rows["llm_only"]["llm_token_fraction"] == 1 and rows["oracle"]["accuracy"] == rows["llm_only"]["accuracy"]
    assert 0 <= rows["oracle"]["llm_token_fraction"] < 1
