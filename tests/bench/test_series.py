"""Series of runs: words, runs that are there already, and how a command ends."""
from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pandas as pd
import pytest

from bench import series
from bench.series import Interrupted, RunFailed, Turn, check_writable, command, run, run_all, split, write_table
from tests.bench.fake import Program, survives
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
    assert split(["--names=a", "--repeats=2"], Options)[0] == split(["names=a", "repeats=2"], Options)[0]
    assert split([], Options) == (Options(), [])


@pytest.mark.parametrize(("word", "said"), [
    ("repeats=0", "repeats=0: allowed is a whole number >= 1"), ("repeats=x", "repeats='x': allowed is a whole number"),
    ("names=[", r"names=\[: not understood; allowed is"), ("names={a:1}", "names=.*allowed is a list of: text"),
])
def test_bad_words(word: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        split([word], Options)


class Runs:
    """Stands for bench/run.py: writes the summary of a run, ended by `reasons`, or gives `code`."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []
        self.code, self.reasons, self.completed = 0, ["measured 1 s"], 8

    def __call__(self, command: list[str]) -> int:
        *overrides, folder = command[2:]
        self.made.append(overrides)
        file = Path(folder.removeprefix("hydra.run.dir="), "summary.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        summary = {"n": len(self.made), "completed": self.completed, "validity": {"reasons": self.reasons},
                   "provenance": {"command": " ".join(["python bench/run.py", *overrides])}}
        file.write_text(json.dumps(summary))
        return self.code


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(series, "_execute", made)
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


def test_a_run_that_answered_nothing_is_made_again(tmp_path: Path, runs: Runs) -> None:
    runs.completed, runs.code = 0, 1
    with pytest.raises(RunFailed):
        run(tmp_path, ["algo=r2r"])
    runs.completed, runs.code = 1, 0
    assert run(tmp_path, ["algo=r2r"])["n"] == run(tmp_path, ["algo=r2r"])["n"] == 2


def test_each_run_is_announced_and_the_time_left_when_it_is_known(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [Turn(name, f"{name} (repeat {repeat})", tmp_path / f"{repeat}-{name}", [f"system={name}"])
             for repeat in (1, 2) for name in "ab"]
    clock = iter([0, 30, 30, 40, 40, 70, 70, 80, 80])  # a: 30 s, b: 10 s
    monkeypatch.setattr(series, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert [made["n"] for made in run_all(turns, once=2)] == [1, 2, 3, 4]
    assert capsys.readouterr().out.splitlines() == [
        "turn 1 of 4: a (repeat 1)", "turn 2 of 4: b (repeat 1)",
        "turn 3 of 4: a (repeat 2); all done in about 40 s", "turn 4 of 4: b (repeat 2); all done in about 10 s"]
    assert next(run_all(turns, once=2))["n"] == 1
    assert capsys.readouterr().out == "turn 1 of 4: a (repeat 1), there already\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_run_write_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    program = Program(tmp_path, {"completed": 8, "validity": {"reasons": []}, "provenance": {}})
    monkeypatch.setattr(series, "ROOT", tmp_path)
    program.stops(1, [number])
    with survives():
        assert command(lambda _: run(tmp_path / "out", ["a=1"])) == code  # type: ignore[arg-type]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["validity"]["reasons"] == ["interrupted"]
    assert summary["signals"] == [signal.SIGTERM] and summary["own group"]  # so that it gets none twice
    assert run(tmp_path / "out", ["a=1"])["validity"]["reasons"] == []


def test_a_second_signal_kills_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path, {"completed": 8, "validity": {"reasons": []}, "provenance": {}})
    program.stops(1, [signal.SIGINT, signal.SIGTERM])
    monkeypatch.setattr(series, "ROOT", tmp_path)
    with survives():
        assert command(lambda _: run(tmp_path / "out", ["a=1"])) == 130  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_run_ends_when_its_command_is_killed(tmp_path: Path) -> None:
    Program(tmp_path, {"completed": 8, "validity": {"reasons": []}, "provenance": {}}).stops(1, [signal.SIGKILL])
    code = "import sys, pathlib; from bench import series; series.ROOT = pathlib.Path(sys.argv[1]); " \
           "series.run(series.ROOT / 'out', ['a=1'])"
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=series.ROOT)
    assert killed.returncode == -signal.SIGKILL
    file, until = tmp_path / "out" / "summary.json", time.monotonic() + 10
    while not (file.is_file() and file.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    assert set(json.loads(file.read_text())["signals"]) == {signal.SIGTERM}


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    check_writable(csv=tmp_path / "new", plot=None)
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "none" / "new", tmp_path / "file" / "new"):
        with pytest.raises(InputError, match=r"csv=.*: allowed is a file in a folder that is there"):
            check_writable(csv=place)


def test_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1], "b": ["x"]})
    write_table(frame, tmp_path / "t.csv", tmp_path / "t.md")
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,x\n"
    assert (tmp_path / "t.md").read_text().splitlines()[-1].split() == ["|", "1", "|", "x", "|"]
    write_table(frame, None, None)


@pytest.mark.parametrize(("raised", "code"), [
    (InputError("x=1: allowed is 2"), 2), (RunFailed(1), 1), (Interrupted(signal.SIGTERM), 143), (None, 0)])
def test_how_commands_end(raised: BaseException | None, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def main(words: object) -> None:
        if raised is not None:
            raise raised

    assert command(main) == code
    assert capsys.readouterr().err == {2: "error: x=1: allowed is 2\n", 143: "stopped\n"}.get(code, "")


@pytest.mark.parametrize("script", ["compare.py systems=[nothing]", "paper.py", "zoo.py algos=[nothing]"])
def test_commands_refuse_bad_words_with_one_line(script: str) -> None:
    file, *words = script.split()
    done = subprocess.run([sys.executable, str(series.ROOT / "bench" / file), *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("script", "begins"), [
    ("compare.py --help", "Runs side by side: "), ("paper.py -h", "The paper's tables"), ("zoo.py -h", "The zoo's ")])
def test_help_is_shown_at_once(script: str, begins: str) -> None:
    file, word = script.split()
    words = [sys.executable, "-X", "importtime", str(series.ROOT / "bench" / file), word]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(begins)
    assert not {"torch", "pandas", "bench.series"} & {line.rpartition("|")[2].strip()
                                                      for line in done.stderr.splitlines()}
