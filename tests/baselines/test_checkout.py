from __future__ import annotations

import sys
from pathlib import Path

import pytest

from baselines.checkout import serve
from tests.baselines.conftest import MakeSpec
from tests.serve import serve as send
from tokenrouter.cluster.spec import AlgorithmSpec
from tokenrouter.core import InputError, SamplingParams

ADAPTER = """
import json, sys
told = json.loads(input())
print(json.dumps({"ready": told["roles"] == ["small", "large"]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    rid = request.get("rid")
    if rid is None:
        print(json.dumps({"rid": request["abort"], "finish_reason": "abort"}), flush=True)
        continue
    if request["seed"] == 13:
        %s
    for token in request["prompt_ids"][: request["max_tokens"]]:
        print(json.dumps({"rid": rid, "token_ids": [token], "role": token %% 2}), flush=True)
    if request["seed"] != 5:
        print(json.dumps({"rid": rid, "finish_reason": "length", "handoffs": 2}), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter.py").write_text(ADAPTER % "sys.exit(3)")
    return tmp_path


COMMAND = [sys.executable, "adapter.py"]


def test_a_checkout_serves_requests(make_spec: MakeSpec, pair: AlgorithmSpec, folder: Path) -> None:
    with serve(make_spec(pair), str(folder), COMMAND) as service:
        jobs = [("r2r", [4, 7, 9, i], SamplingParams(i, 3)) for i in range(5)]
        records = send(service, jobs, 2)  # type: ignore[arg-type]
        assert [record.token_ids for record in records] == [[4, 7, 9]] * 5
        assert records[0].token_models == [0, 1, 1]
        assert {(record.finish_reason, record.handoffs, record.discarded) for record in records} == {("length", 2, 0)}
        rid = service.submit([4], SamplingParams(5, 3), "r2r")
        assert [event.rid for event in service.poll(30)] == [rid]
        service.abort(rid)
        (end,) = service.poll(30)
        assert (end.reason, end.num_output) == ("abort", 1)  # type: ignore[union-attr]
        assert service.stats() == []
    assert service._process.poll() == 0


def test_its_end_is_heard_of(make_spec: MakeSpec, pair: AlgorithmSpec, folder: Path) -> None:
    with serve(make_spec(pair), str(folder), COMMAND) as service:
        service.submit([1], SamplingParams(13, 3), "r2r")
        with pytest.raises(RuntimeError, match="process has ended, exit code 3"):
            service.poll(30)


@pytest.mark.parametrize(("words", "message"), [
    ('print("hello", flush=True); continue', "wrote 'hello': allowed is one JSON object a line"),
    ('print("[1]", flush=True); continue', r"wrote '\[1\]': allowed is one JSON object a line"),
    ('print(json.dumps({"rid": rid, "finish_reason": "tired"}), flush=True); continue', "not understood .*tired"),
])  # fmt: skip
def test_what_is_not_understood_is_named(
    make_spec: MakeSpec, pair: AlgorithmSpec, folder: Path, words: str, message: str
) -> None:
    (folder / "adapter.py").write_text(ADAPTER % words)
    with serve(make_spec(pair), str(folder), COMMAND) as service:
        service.submit([1], SamplingParams(13, 3), "r2r")
        with pytest.raises(RuntimeError, match=message):
            service.poll(30)


def test_a_folder_and_a_command_that_are_none_are_refused(
    make_spec: MakeSpec, pair: AlgorithmSpec, folder: Path
) -> None:
    with pytest.raises(InputError, match=r"official\.path='nowhere': allowed is the folder"), \
            serve(make_spec(pair), "nowhere", COMMAND):
        pass
    with pytest.raises(InputError, match=r"official\.command=\['no-such-program'\]: cannot be started"), \
            serve(make_spec(pair), str(folder), ["no-such-program"]):
        pass
    (folder / "adapter.py").write_text("print('{}', flush=True); input()")
    with pytest.raises(RuntimeError, match="first line"), serve(make_spec(pair), str(folder), COMMAND):
        pass
