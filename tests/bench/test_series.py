"""Series of runs: words, runs that are there already, and how a command ends."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pandas as pd
import pytest

from bench import series
from bench.series import RunFailed, command, run, split, write_table
from tokenrouter.config import Positive, Strict
from tokenrouter.core import InputError


class Options(Strict):
    places: list[int] | None = None
    names: list[str] = msgspec.field(default_factory=list)
    repeats: Positive = 3
    out: str | None = None


def test_own_words_are_told_from_overrides() -> None:
    options, overrides = split(["names=[a,b]", "load.seed=1", "repeats=2", "algo.repeats=x", "out=a/b c"], Options)
    assert options == Options(None, ["a", "b"], 2, "a/b c") and overrides == ["load.seed=1", "algo.repeats=x"]
    assert split(["names=a"], Options)[0].names == ["a"] and split(["names=a,b"], Options)[0].names == ["a", "b"]
    assert split(["places=3"], Options)[0].places == [3] and split(["places=null"], Options)[0].places is None
    assert split([], Options) == (Options(), [])


@pytest.mark.parametrize(("word", "said"), [
    ("repeats=0", "repeats=0: allowed is a whole number >= 1"), ("repeats=x", "repeats='x': allowed is a whole number"),
    ("names=[", r"names=\[: not understood; allowed is"), ("names={a:1}", "names.0=.*allowed is text"),
])
def test_bad_words(word: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        split([word], Options)


class Runs:
    """Stands for bench/run.py: writes the summary of a run, ended by `reasons`, or gives `code`."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []
        self.code, self.reasons = 0, ["measured 1 s"]

    def __call__(self, command: list[str]) -> Any:
        *overrides, folder = command[2:]
        self.made.append(overrides)
        file = Path(folder.removeprefix("hydra.run.dir="), "summary.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        summary = {"n": len(self.made), "validity": {"reasons": self.reasons},
                   "provenance": {"command": " ".join(["python bench/run.py", *overrides])}}
        file.write_text(json.dumps(summary))
        return SimpleNamespace(returncode=self.code)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(series, "subprocess", SimpleNamespace(run=made))
    return made


def test_a_run_is_made_once(tmp_path: Path, runs: Runs) -> None:
    assert run(tmp_path / "a", ["algo=r2r"])["n"] == run(tmp_path / "a", ["algo=r2r"])["n"] == 1
    assert run(tmp_path / "b", ["algo=me"])["n"] == 2
    with pytest.raises(InputError, match=r"holds the run a of '.*algo=r2r', not of '.*algo=me'; allowed is another"):
        run(tmp_path / "a", ["algo=me"])


@pytest.mark.parametrize("reason", ["interrupted", "failed: no token for 120 s"])
def test_a_run_that_ended_early_is_made_again(tmp_path: Path, runs: Runs, reason: str) -> None:
    runs.reasons, runs.code = [reason], 130
    with pytest.raises(RunFailed) as failed:
        run(tmp_path, ["algo=r2r"])
    assert failed.value.code == 130
    runs.reasons, runs.code = [], 0
    assert run(tmp_path, ["algo=r2r"])["n"] == run(tmp_path, ["algo=r2r"])["n"] == 2


def test_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1], "b": ["x"]})
    write_table(frame, tmp_path / "t.csv", tmp_path / "t.md")
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,x\n"
    assert (tmp_path / "t.md").read_text().splitlines()[-1].split() == ["|", "1", "|", "x", "|"]
    write_table(frame, None, None)


@pytest.mark.parametrize(("raised", "code"), [
    (InputError("x=1: allowed is 2"), 2), (RunFailed(1), 1), (KeyboardInterrupt(), 130), (None, 0)])
def test_how_commands_end(raised: BaseException | None, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def main(words: object) -> None:
        if raised is not None:
            raise raised

    assert command(main) == code
    assert capsys.readouterr().err == ("error: x=1: allowed is 2\n" if code == 2 else "")


@pytest.mark.parametrize("script", ["compare.py systems=[nothing]", "paper.py", "zoo.py algos=[nothing]"])
def test_commands_refuse_bad_words_with_one_line(script: str) -> None:
    file, *words = script.split()
    done = subprocess.run([sys.executable, str(series.ROOT / "bench" / file), *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
