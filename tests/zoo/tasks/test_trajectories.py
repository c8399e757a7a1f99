from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tokenrouter.core import InputError
from zoo.tasks.rows import Message
from zoo.tasks.workload import SESSIONS, Workload, load_workload

CONF = Path(__file__).parents[3] / "conf" / "workload"


def tokenize(messages: list[Message]) -> list[int]:
    """A token a letter, and one for whose turn it is."""
    return [1 + ord(letter) for message in messages for letter in message["content"]] + [0] * (len(messages) + 1)


def load(embedded: bool = False, **changed: Any) -> Workload:
    config = OmegaConf.to_container(OmegaConf.load(CONF / "agentic.yaml"))
    assert isinstance(config, dict)
    return load_workload({**config, **changed}, embedded=embedded, n=4, seed=0, tokenize=tokenize)


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TALK = [turn("system", "s" * 9), *[turn(role, role[0] * 9) for _ in range(6) for role in ("user", "assistant")]]


def written(path: Path, *conversations: Any) -> str:
    rows = [{"traj_id": f"t{i}", "messages": messages} for i, messages in enumerate(conversations)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("spell", [json.dumps, lambda messages: messages])
def test_the_last_turns_of_the_asked_length_are_requests_over_one_prefix(tmp_path: Path, spell: Any) -> None:
    workload = load(path=written(tmp_path / "mine.jsonl", spell(TALK)), input_tokens=[50, 110], turns=3)
    # Ten tokens a message and one for the prompt's end: prompts of 21, 41, 61, 81, 101 and 121 tokens.
    assert [len(task.prompt_ids or []) for task in workload.problems] == [61, 81, 101]
    assert [task.id for task in workload.problems] == ["t0/6", "t0/8", "t0/10"]
    shorter, longer = workload.problems[0], workload.problems[1]
    assert longer.prompt_messages[:6] == shorter.prompt_messages
    assert longer.prompt_messages[-1]["role"] == "user"
    assert longer.prompt_ids == tokenize(longer.prompt_messages)
    assert longer.expected is None and workload.grader == "none" and workload.max_tokens == 1024
    assert len(load(path=str(tmp_path / "mine.jsonl"), input_tokens=[50, 110], turns=1).problems) == 1


def test_calls_and_what_tools_answered_are_texts_by_roles_that_every_template_knows(tmp_path: Path) -> None:
    calls = [{"function": {"name": "ls", "arguments": "{}"}}]
    talk = [
        turn("user", [{"type": "text", "text": "look"}, {"type": "image"}]), turn("assistant", None, tool_calls=calls),
        turn("tool", "README"), turn("assistant", "done")]
    workload = load(path=written(tmp_path / "mine.jsonl", talk), input_tokens=[1, 9000])
    assert workload.problems[-1].prompt_messages == [
        {"role": "user", "content": "look"}, {"role": "assistant", "content": json.dumps(calls)},
        {"role": "user", "content": "README"}]


def test_conversations_go_on_side_by_side(tmp_path: Path) -> None:
    talks = [[turn("system", f"{i}"), *TALK] for i in range(SESSIONS + 3)]
    workload = load(path=written(tmp_path / "mine.jsonl", *talks), input_tokens=[1, 9000], turns=3)
    asked = [workload.draw(i)[0].id for i in range(len(workload.problems))]
    assert sorted(asked) == sorted(task.id for task in workload.problems)
    first = [id.partition("/") for id in asked[: 3 * SESSIONS]]
    assert len({name for name, _, _ in first}) == SESSIONS
    names = [name for name, _, _ in first[:SESSIONS]]
    assert [name for name, _, _ in first] == 3 * names
    for name in names:
        places = [int(place) for other, _, place in first if other == name]
        assert places == sorted(places)


def test_embedded_dialogues_share_no_problem_and_have_drawn_lengths() -> None:
    workload = load(embedded=True)
    assert workload.data_source.startswith("embedded:dialogues-test#")
    talks = {task.conversation: task for task in workload.problems}
    assert len(talks) == 24 and 2 * 24 < len(workload.problems) <= 4 * 24
    questions = [m["content"] for task in talks.values() for m in task.prompt_messages if m["role"] == "user"]
    assert len(set(questions)) == len(questions)
    assert all(6144 <= len(task.prompt_ids or []) <= 8192 for task in workload.problems)
    lengths = {task.max_tokens or 0 for task in workload.problems}
    assert len(lengths) > 10 and 768 <= min(lengths) <= max(lengths) <= 1024
    assert all(task.ignore_eos and task.expected is None for task in workload.problems)
    assert load(embedded=True).problems == workload.problems


@pytest.mark.parametrize(("cell", "reason"), [
    ("[1,", "row 2: messages='\\[1,': allowed is .*Expecting value"),
    ([turn("user", "?")], "row 2: .*no assistant's turn"),
    ([turn("robot", "!"), turn("assistant", "")], "row 2: .*role 'robot', of system, user"),
    ([{"content": "?"}], "row 2: .*no 'role'"),
    ([turn("user", 7), turn("assistant", "")], "row 2: .*content of type int"),
    (None, "row 2: messages=None: allowed is"),
    pytest.param("[" * 100_000, "row 2: messages='\\[\\[.*: allowed is .*recursion", id="nested"),
    ([turn("user", "\ud800"), turn("assistant", "")], r"row 2: messages='\\ud800': allowed is text that UTF-8 can"),
])  # fmt: skip
def test_broken_conversations_are_named(tmp_path: Path, cell: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        load(path=written(tmp_path / "mine.jsonl", TALK, cell), input_tokens=[1, 9000])
    assert "\n" not in str(error.value)


def test_conversations_of_other_lengths_and_ranges_that_are_none_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", TALK)
    with pytest.raises(InputError, match=r"workload\.input_tokens=\[6144, 8192\]: none of the prompts of file:mine"):
        load(path=path)
    with pytest.raises(InputError, match=r"workload\.input_tokens=\[2, 1\]: allowed is the least and the most"):
        load(path=path, input_tokens=[2, 1])
    config = OmegaConf.load(CONF / "agentic.yaml")
    with pytest.raises(InputError, match=r"workload=agentic: .*allowed are models with a tokenizer"):
        load_workload(config, embedded=True, n=1, seed=0)
    config.embedded.output_tokens = [9, 8]
    with pytest.raises(InputError, match=r"workload\.embedded\.output_tokens=\[9, 8\]: allowed is the least and the"):
        load_workload(config, embedded=True, n=1, seed=0, tokenize=tokenize)


def test_hub_rows_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    class Stream(list):
        def take(self, count: int) -> list[Any]:
            return self[:count]

    def answer(id: str, name: str | None, **named: Any) -> Stream:
        asked.update(named, id=id)
        return Stream({"traj_id": f"t{i}", "messages": json.dumps(TALK)} for i in range(100))

    monkeypatch.setattr("datasets.load_dataset", answer)
    workload = load(input_tokens=[1, 9000], turns=1)
    assert asked == {
        "id": "SWE-bench/SWE-smith-trajectories", "split": "tool", "revision": "main", "streaming": True}
    assert len(workload.problems) == 64
    with pytest.raises(InputError, match=r"workload\.hub\.fingerprint='0': .*have changed"):
        load(input_tokens=[1, 9000], hub={"id": "a/b", "split": "tool", "rows": 3, "fingerprint": "0"})
