"""Training and calibration as commands, from end to end, on the embedded models as if they were any other pair."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import zoo.calibrate
import zoo.quality
import zoo.train
from tokenrouter.core import InputError
from zoo.models import path
from zoo.tasks.arithmetic import problems

ROLE = {"citer": "small", "collm": "base"}


def arguments(algo: str, folder: Path) -> list[str]:
    """For a pair of folders, and problems in a file."""
    made = problems("router", 4, 1, min_steps=2, max_steps=2)
    lines = [json.dumps({"id": p.id, "q": p.question, "a": str(p.answer), "s": p.solution}) for p in made]
    (folder / "problems.jsonl").write_text("\n".join(lines))
    columns = {"id": "id", "question": "q", "answer": "a", "solution": "s"}
    return [
        f"algo={algo}", "models=tiny", "models.embedded=false", f"models.roles.small.path={path('small')}",
        f"workload.path={folder / 'problems.jsonl'}", "workload.natural.prompt='{question}'", "workload.max_tokens=150",
        *(f"workload.columns.{name}={column}" for name, column in columns.items()),
    ]


@pytest.mark.parametrize("algo", ["citer", "collm"])
def test_a_router_is_trained_and_calibrated(algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared, out = arguments(algo, tmp_path), tmp_path / "out"
    train = [*shared, "problems=4", "chunk=2", "held_out=0.3", "epochs=2", f"out={out}"]
    zoo.train.main(train)
    said = capsys.readouterr().out
    assert "held-out loss" in said
    weights = load_file(out / "router.safetensors")
    before = {file: file.stat().st_mtime_ns for file in out.rglob("labels*/*.safetensors")}
    zoo.train.main(train)  # all of it is there
    assert capsys.readouterr().out == said
    assert before and {file: file.stat().st_mtime_ns for file in before} == before
    assert all(tensor.equal(weights[name]) for name, tensor in load_file(out / "router.safetensors").items())
    with pytest.raises(InputError, match="holds labels of other models or data"):
        zoo.train.main([argument.replace("problems=4", "problems=3") for argument in train])

    router = [f"algo.weights={out / 'router.safetensors'}"]
    if algo == "collm":
        router.append(f"models.roles.base.path={out / 'base'}")
    curve = tmp_path / "curve.json"
    zoo.calibrate.main([*shared, *router, "target=llm_fraction:0.2", "problems=4", "refine=1", f"out={curve}"])
    found = json.loads(curve.read_text())
    fractions = [point["llm_token_fraction"] for point in found["curve"]]
    assert fractions[0] == 0 and fractions[-1] == 1
    assert found["models"] == {ROLE[algo]: "base" if algo == "collm" else "small", "large": "large"}
    assert 0 < found["threshold"] < 1


def test_an_interrupted_calibration_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    measure, left = zoo.quality.measure, [0]

    def some(*given: Any) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return measure(*given)

    monkeypatch.setattr(zoo.calibrate, "measure", some)
    command = ["algo=entropy", "target=llm_fraction:0.2", "problems=2", "refine=1", "workload.max_tokens=20"]
    left[0] = 99
    zoo.calibrate.main([*command, "out=once.json"])
    used, left[0] = 99 - left[0], 4
    with pytest.raises(KeyboardInterrupt):
        zoo.calibrate.main([*command, "out=again.json"])
    left[0] = used - 4
    zoo.calibrate.main([*command, "out=again.json"])
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads((tmp_path / "once.json").read_text())
    assert not list((tmp_path / "results" / "runs").iterdir())
