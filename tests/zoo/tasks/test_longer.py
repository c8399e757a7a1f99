from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tokenrouter.core import InputError
from zoo.tasks import longer
from zoo.tasks.workload import Workload, load_workload

ROOT = Path(__file__).parents[3]


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"id": i, "problem": f"{i}?", "answer": i}) + "\n" for i in range(4)))
    return file


def load(problems: Path, only: str | None) -> Workload:
    config: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/workload/aime_high.yaml"))
    return load_workload({**config, "path": str(problems), "only": only}, embedded=False, n=1, seed=0)


@pytest.fixture
def run(tmp_path: Path, problems: Path) -> Path:
    """Problem 0 is short; of 1, one answer in two is long; 2 was cut off at exactly 100; 3 ended there by itself."""
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [("0", 99, "stop"), ("1", 30, "stop"), ("1", 101, "stop"), ("2", 100, "length"), ("3", 100, "stop")]
    (folder / "requests.jsonl").write_text("".join(
        json.dumps({"id": id, "output_tokens": tokens, "finish_reason": reason}) + "\n" for id, tokens, reason in rows))
    (folder / "summary.json").write_text(json.dumps({
        "models": {"large": {"id": "a/b", "revision": "abc"}}, "sampling": {"max_tokens": 120},
        "provenance": {"data_source": load(problems, None).data_source}}))
    return folder


def test_the_command_lists_the_long_ones_and_a_workload_is_limited_to_them(
    run: Path, problems: Path, tmp_path: Path
) -> None:
    out = tmp_path / "long.json"
    command = [sys.executable, "-m", "zoo.tasks.longer", f"run={run}", "tokens=100", f"out={out}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    listed = json.loads(out.read_text())
    assert listed == {
        "data_source": load(problems, None).data_source, "tokens": 100, "by": "a/b", "revision": "abc",
        "ids": ["1", "2"]}
    limited = load(problems, str(out))
    assert [task.id for task in limited.problems] == ["1", "2"]
    assert limited.data_source.startswith(listed["data_source"] + "/")
    problems.write_text(problems.read_text().replace("3?", "4?"))
    with pytest.raises(InputError, match=r"workload\.only=.*: lists problems of file:mine.*; allowed is a list of"):
        load(problems, str(out))


def test_a_list_goes_to_a_folder_that_is_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"out=.*: cannot be written \(No such file or directory\); allowed is a file"):
        longer.main([f"run={run}", "tokens=100", f"out={tmp_path / 'nowhere' / 'a.json'}"])


@pytest.mark.parametrize(("ids", "message"), [
    (["1", "gone", "9"], "lists '9', 'gone'; allowed is one or more ids of file:mine"),
    ([f"x{i}" for i in range(7)], "lists 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more; allowed"),
    ([], "lists no ids; allowed is one or more ids of file:mine"),
])  # fmt: skip
def test_lists_of_unknown_or_no_ids_are_refused(
    problems: Path, tmp_path: Path, ids: list[str], message: str
) -> None:
    listed = {"data_source": load(problems, None).data_source, "tokens": 1, "by": "a/b", "revision": None, "ids": ids}
    (tmp_path / "list.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match=rf"workload\.only=.*list\.json': {message}"):
        load(problems, str(tmp_path / "list.json"))


@pytest.mark.parametrize(("tokens", "message"), [
    (121, "tokens=121: allowed is at most 120"),
    (110, "tokens=110: no answer in .* has as many; allowed is fewer"),
])  # fmt: skip
def test_limits_that_nothing_reaches_are_refused(run: Path, tokens: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        longer.find(run, tokens)


def test_what_is_no_run_and_no_list_is_refused(tmp_path: Path, problems: Path) -> None:
    with pytest.raises(InputError, match=r"run=.*: allowed is the folder of a run of one model"):
        longer.find(tmp_path, 1)
    with pytest.raises(InputError, match=r"workload\.only='gone\.json': cannot be read .*zoo\.tasks\.longer"):
        load(problems, "gone.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match=r"workload\.only=.*list\.json': cannot be read"):
        load(problems, str(tmp_path / "list.json"))
