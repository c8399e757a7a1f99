from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from omegaconf import OmegaConf

from tokenrouter.core import InputError
from zoo.tasks.workload import Workload, load_workload

CONF = Path(__file__).parents[3] / "conf" / "workload"
ROWS = [
    {"id": 60, "problem": "What is $1+1$?", "answer": "2"},
    {"id": 61, "problem": "What is {x} for $x=3$?", "answer": "003"},
    {"id": 62, "problem": "What is half of 9?", "answer": 4.5},
]


def config(name: str = "aime", **changed: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    assert isinstance(plain, dict)
    return {**plain, **changed}


def load(name: str = "aime", *, embedded: bool = False, n: int = 4, seed: int = 0, **changed: Any) -> Workload:
    if "embedded_set" in changed:
        changed["embedded"] = changed.pop("embedded_set")
    return load_workload(config(name, **changed), embedded=embedded, n=n, seed=seed)


def written(path: Path, rows: list[Any]) -> str:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", ["aime", "amc23", "gsm8k"])
def test_embedded_models_are_asked_the_bare_embedded_problems(name: str) -> None:
    workload = load(name, embedded=True)
    assert workload.name == name
    assert len(workload.problems) == 1000
    assert all(problem.id.startswith("test-") for problem in workload.problems)
    assert all(problem.expected is not None and 0 <= int(problem.expected) <= 999 for problem in workload.problems)
    (message,) = workload.problems[0].prompt_messages
    assert message["role"] == "user"
    assert "boxed" not in message["content"]
    assert workload.data_source.startswith("embedded:arithmetic-test@")
    assert workload.max_tokens == 512
    assert (workload.problems[0].solution or "").endswith(f"\\boxed{{{workload.problems[0].expected}}}.")


def test_the_embedded_set_depends_on_neither_length_nor_seed_of_the_run() -> None:
    one, other = load(embedded=True, n=1, seed=0), load(embedded=True, n=2000, seed=5)
    assert one.problems == other.problems
    assert one.data_source == other.data_source


def test_different_embedded_sets_have_different_sources() -> None:
    assert len({load(name, embedded=True).data_source for name in ("aime", "amc23", "gsm8k")}) == 3


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_a_file_is_read_in_each_format(tmp_path: Path, suffix: str) -> None:
    rows = [{**row, "answer": str(row["answer"])} for row in ROWS]
    workload = load(path=written(tmp_path / f"mine.{suffix}", rows))
    assert [problem.id for problem in workload.problems] == ["60", "61", "62"]
    assert [problem.expected for problem in workload.problems] == ["2", "003", "4.5"]
    assert workload.problems[1].prompt_messages[0]["content"].startswith("What is {x} for $x=3$?\n\nPlease reason")
    assert workload.data_source.startswith(f"file:mine.{suffix}@")
    assert workload.max_tokens == 2048


def test_the_source_of_a_file_follows_its_content(tmp_path: Path) -> None:
    first = load(path=written(tmp_path / "mine.jsonl", ROWS)).data_source
    assert load(path=written(tmp_path / "mine.jsonl", ROWS)).data_source == first
    assert load(path=written(tmp_path / "mine.jsonl", ROWS[:2])).data_source != first


def test_the_source_of_a_file_follows_what_is_asked_of_it(tmp_path: Path) -> None:
    rows = [{**row, "other": f"{row['problem']} #### 7"} for row in ROWS]
    path, usual = written(tmp_path / "mine.jsonl", rows), config()
    changes: list[dict[str, Any]] = [
        {}, {"natural": {**usual["natural"], "prompt": "{question}"}},
        {"columns": {**usual["columns"], "question": "other"}},
        {"columns": {**usual["columns"], "answer": "other"}, "answer_after": "####"},
        {"columns": {**usual["columns"], "id": None}},
    ]  # fmt: skip
    assert len({load(path=path, **changed).data_source for changed in changes}) == len(changes)


def test_a_file_can_be_put_to_embedded_models(tmp_path: Path) -> None:
    workload = load(embedded=True, path=written(tmp_path / "mine.jsonl", ROWS))
    assert workload.problems[0].prompt_messages == [{"role": "user", "content": "What is $1+1$?"}]
    assert workload.data_source.startswith("file:")


def test_the_columns_of_amc23_and_gsm8k(tmp_path: Path) -> None:
    amc = load("amc23", path=written(tmp_path / "amc.jsonl", [{"question": "How far?", "answer": 27.0}]))
    assert (amc.problems[0].id, amc.problems[0].expected) == ("0", "27")
    rows = [{"question": "How many?", "answer": "16 - 3 = <<16-3=13>>13\n#### 1,800"}]
    gsm = load("gsm8k", path=written(tmp_path / "gsm.jsonl", rows))
    assert gsm.problems[0].expected == "1800"
    assert gsm.grader == "final_number"
    assert gsm.problems[0].solution == rows[0]["answer"] and amc.problems[0].solution is None


CHOICES = {"label": ["A", "B"], "text": ["a bank", "a mall"]}


def test_options_follow_the_question(tmp_path: Path) -> None:
    rows = [{"id": "q", "question": "Where is money?", "choices": CHOICES, "answerKey": "A"}]
    workload = load("commonsenseqa", path=written(tmp_path / "mine.parquet", rows))
    (message,) = workload.problems[0].prompt_messages
    assert message["content"].startswith("Where is money?\n\n(A) a bank\n(B) a mall\n\nPlease reason")
    assert (workload.problems[0].expected, workload.grader) == ("A", "choice")


@pytest.mark.parametrize(("changed", "message"), [
    ({"choices": "A, B"}, "row 2: choices='A, B': allowed is {'label'"),
    ({"choices": {**CHOICES, "text": ["one"]}}, "row 2: choices=.*: allowed is"),
    ({"choices": {**CHOICES, "text": ["one", 2]}}, "row 2: choices=.*: allowed is"),
    ({"answerKey": "C"}, r"row 2: the answer 'C' is not among the labels \['A', 'B'\]; allowed is one of them"),
    ({"answerKey": "2", "choices": {**CHOICES, "label": ["1", "2"]}},
     "row 2: answerKey='2': allowed for workload.grader=choice is a letter from A to H"),
    ({"answerKey": "AB", "choices": {**CHOICES, "label": ["A", "AB"]}}, "row 2: answerKey='AB': allowed for"),
])  # fmt: skip
def test_broken_options_are_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    row = {"id": "q", "question": "Where is money?", "choices": CHOICES, "answerKey": "A"}
    path = written(tmp_path / "mine.jsonl", [row, {**row, "id": "r", **changed}])
    with pytest.raises(InputError, match=message):
        load("commonsenseqa", path=path)


def test_other_graders_may_have_other_labels(tmp_path: Path) -> None:
    row = {"id": "q", "question": "?", "choices": {**CHOICES, "label": ["1", "2"]}, "answerKey": "2"}
    workload = load("commonsenseqa", path=written(tmp_path / "mine.jsonl", [row]), grader="boxed")
    assert workload.problems[0].expected == "2"


def test_embedded_options_are_numbers() -> None:
    workload = load("commonsenseqa", embedded=True)
    assert workload.grader == "boxed" and int(workload.problems[0].expected or "") >= 0


def test_long_embedded_answers_have_drawn_lengths_and_no_grades() -> None:
    workload = load("aime_high", embedded=True)
    lengths = {task.max_tokens or 0 for task in workload.problems}
    assert len(lengths) > 20 and 6144 <= min(lengths) < max(lengths) <= workload.max_tokens == 8192
    assert all(task.ignore_eos and task.expected is None for task in workload.problems)
    assert load("aime_high", embedded=True, n=9).problems == workload.problems
    other = {**config("aime_high")["embedded"], "output_tokens": [6144, 6145]}
    assert load("aime_high", embedded=True, embedded_set=other).data_source != workload.data_source
    assert load("aime_high", embedded=True, max_tokens=64).problems[0].max_tokens == 64
    with pytest.raises(InputError, match=r"output_tokens=\[3, 2\]: allowed is the least, then the most"):
        load("aime_high", embedded=True, embedded_set={**other, "output_tokens": [3, 2]})


def test_hydra_configurations_are_taken_and_max_tokens_can_be_overridden() -> None:
    composed = OmegaConf.create(config(max_tokens=77))
    assert load_workload(composed, embedded=True, n=1, seed=0).max_tokens == 77


def test_every_round_asks_each_problem_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    rows = [{"id": id, "problem": "?", "answer": 1} for id in range(30)]
    path = written(tmp_path / "mine.jsonl", rows)
    workload = load(path=path, seed=1)
    draws = [workload.draw(i) for i in range(75)]
    assert [sample for _, sample in draws] == [0] * 30 + [1] * 30 + [2] * 15
    assert Counter((task.id, sample) for task, sample in draws).most_common(1)[0][1] == 1
    first, second = draws[:30], draws[30:60]
    assert [task.id for task, _ in first] != [task.id for task, _ in second]
    assert draws == [load(path=path, seed=1).draw(i) for i in range(75)]
    assert draws != [load(path=path, seed=2).draw(i) for i in range(75)]


LINE = '{"id": 1, "problem": "?", "answer": "2"}\n'


@pytest.mark.parametrize(("content", "message"), [
    (LINE + "\n{'id': 2}\n", r"workload\.path=.* row 3: \"\{'id': 2\}\" is not JSON \(.*\); allowed is"),
    (LINE + '{"id": 2, "problem": "?"}\n', r"row 2: has \['id', 'problem'\]; allowed is .*'id', 'problem', 'answer'"),
    (LINE + "7\n", "row 2: has int; allowed is"),
    (LINE + LINE, "row 2: id='1' occurs twice; allowed is"),
    (LINE + LINE.replace("1", "2").replace("?", " "), "row 2: problem=' ': allowed is"),
    (LINE.replace('"2"', "null"), "row 1: answer=None: allowed is"),
    (LINE.replace('"2"', "[2]"), r"row 1: answer=\[2\]: allowed is"),
    (LINE + LINE.replace("1", "3").replace('"2"', "NaN"), "row 2: answer=nan: allowed is .* a finite number"),
    (LINE.replace('"2"', "-1e400"), "row 1: answer=-inf: allowed is .* a finite number"),
    (LINE.replace("?", r"a\ud800"), r"row 1: problem='a\\ud800': allowed is text that UTF-8 can encode, not .* 2$"),
    (LINE.replace("1", '"\\udfff"'), r"row 1: id='\\udfff': allowed is text that UTF-8 can encode"),
    pytest.param(LINE + "[" * 100_000, r"row 2: '\[\[.*' is not JSON \(.*recursion.*\); allowed is", id="nested"),
    ("", r"workload\.path=.*: has no rows; allowed is"),
    ("\n\n", "has no rows; allowed is"),
    (b"\xff\xfe", r"workload\.path=.*: cannot be read as jsonl .*; allowed is"),
])  # fmt: skip
def test_broken_lines_are_named(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as error:
        load(path=str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("mine.txt", b"x", "mine.txt': allowed is a json, jsonl or parquet file"),
    ("mine.json", b"{}", "holds one dict; allowed is a list of rows"),
    ("mine.json", b"[1,", "cannot be read as json .*; allowed is"),
    ("mine.json", b"[]", "has no rows; allowed is"),
    pytest.param("mine.json", b"[" * 100_000, "cannot be read as json .*recursion.*; allowed is", id="nested"),
    ("mine.parquet", b"PAR1", "cannot be read as parquet .*; allowed is"),
    ("missing.jsonl", None, "missing.jsonl': no such file; allowed is"),
])  # fmt: skip
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"workload\.path=.*{message}"):
        load(path=str(tmp_path / name))


def test_a_solution_without_the_mark_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", [{"question": "?", "answer": "it is 13"}])
    with pytest.raises(InputError, match="row 1: answer='it is 13': allowed is an answer behind '####'"):
        load("gsm8k", path=path)


@pytest.mark.parametrize(("changed", "message"), [
    ({"max_tokens": 0}, r"workload\.max_tokens=0: allowed is a whole number >= 1, or null"),
    ({"grader": "guess"}, r"workload\.grader='guess': allowed is one of"),
    ({"kind": "songs"}, r"workload\.kind='songs': allowed is random, trajectories"),
    ({"colums": 1}, r"workload\.colums=1: unknown; allowed is one of name, version, "),
    ({"hub": {"id": "a/b"}}, r"workload\.hub\.split: missing"),
    ({"natural": {"prompt": "Go.", "max_tokens": 1}}, r"workload\.natural\.prompt='Go\.': allowed is a text with"),
    ({"embedded": {**config()["embedded"], "split": "exam"}}, r"workload\.embedded\.split='exam': allowed is one of"),
    ({"n": 0}, r"load\.num_requests=0: allowed is >= 1"),
])  # fmt: skip
def test_wrong_fields_are_named(changed: dict[str, Any], message: str) -> None:
    fields = {name: value for name, value in changed.items() if name != "n"}
    with pytest.raises(InputError, match=message):
        load_workload(config(**fields), embedded=True, n=changed.get("n", 1), seed=0)


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No name resolves; what was asked for is listed."""
    asked: list[str] = []

    def fail(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    return asked


HOW = r"workload\.hub='HuggingFaceH4/aime_2024' .*cannot be loaded .*workload\.path=FILE .*'id', 'problem', 'answer'"


def test_an_unreachable_hub_is_one_error_without_long_retries(
    unreachable: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(InputError, match=HOW) as error:
        load()
    assert 1 <= len(unreachable) <= 2  # the client's own second try, and none of the many of `load_dataset`
    assert "\n" not in str(error.value)


def test_an_offline_hub_is_the_same_error_and_nothing_is_asked(
    unreachable: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=HOW):
        load()
    assert not unreachable


class _Rows(list):
    def to_list(self) -> list[Any]:
        return list(self)


def test_hub_rows_and_their_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's answer is stood in for; the names, the split and the pin are ours."""
    asked: list[Any] = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def answer(*arguments: Any, **named: Any) -> _Rows:
        asked.append((arguments, named))
        return _Rows(ROWS)

    monkeypatch.setattr("datasets.load_dataset", answer)
    workload = load()
    assert asked == [(("HuggingFaceH4/aime_2024", None), {"split": "train", "revision": "main"})]
    assert [problem.id for problem in workload.problems] == ["60", "61", "62"]
    source, _, digest = workload.data_source.partition("#")
    assert source == "hub:HuggingFaceH4/aime_2024@main"
    pinned = {**config()["hub"], "fingerprint": digest}
    assert load(hub=pinned).data_source == workload.data_source
    with pytest.raises(InputError, match=rf"workload\.hub\.fingerprint='000000000000': .*'{digest}'"):
        load(hub={**pinned, "fingerprint": "000000000000"})
