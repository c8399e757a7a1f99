"""Conversations of many turns, each turn a request: what an assistant that acts is asked, over a growing prefix."""

from __future__ import annotations

import bisect
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tokenrouter.core import InputError
from zoo.tasks.arithmetic import Generated
from zoo.tasks.hub import HubSet, read_hub
from zoo.tasks.rows import Message, Numbered, Task, check_text, fingerprint, identified, read_file, shown

Tokenize = Callable[[list[Message]], list[int]]
"""A conversation -> the ids of the prompt that asks for its next turn."""

_Positive = Annotated[int, Meta(ge=1)]
_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "user"}


class TrajectoryColumns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    messages: str


class Dialogues(Generated, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conversations about generated problems; `output_tokens`: each turn is answered at exactly such a length."""

    output_tokens: tuple[_Positive, _Positive]


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_tokens: _Positive


class TrajectoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What conf/workload/agentic.yaml explains, field by field."""

    name: str
    version: int
    kind: Literal["trajectories"]
    columns: TrajectoryColumns
    hub: HubSet
    input_tokens: tuple[_Positive, _Positive]
    turns: _Positive
    natural: Bound
    embedded: Dialogues
    path: str | None = None
    max_tokens: _Positive | None = None


def load_trajectories(spec: TrajectoryConfig, tokenize: Tokenize, *, embedded: bool) -> tuple[str, list[Task]]:
    """(data source, requests). InputError for rows that are broken, and where no prompt is of the length asked for."""
    ranges = {"embedded.output_tokens": spec.embedded.output_tokens, "input_tokens": spec.input_tokens}
    for field, (low, high) in ranges.items():
        if low > high:
            raise InputError(f"workload.{field}={[low, high]}: allowed is the least and the most, in this order")
    low, high = spec.input_tokens
    columns = [spec.columns.id, spec.columns.messages]
    if spec.path is not None:
        conversations = _conversations(f"workload.path={spec.path!r}", read_file(spec.path, columns), spec.columns)
        source = f"file:{Path(spec.path).name}@{hashlib.sha256(Path(spec.path).read_bytes()).hexdigest()[:12]}"
    elif embedded:
        conversations = _dialogues(spec.embedded, high, tokenize)
        source = f"embedded:dialogues-{spec.embedded.split}"
    else:
        conversations = _conversations(f"workload.hub={spec.hub.id!r}", read_hub(spec.hub, columns), spec.columns)
        source = f"hub:{spec.hub.id}@{spec.hub.revision}"
    tasks = []
    for id, messages in conversations:
        try:
            tasks += _turns(spec, id, messages, tokenize)
        except InputError as error:
            raise InputError(f"conversation {id}: {error}") from None
    if not tasks:
        raise InputError(
            f"workload.input_tokens={[low, high]}: none of the prompts of {source} is as long; allowed is a range that "
            "some are in"
        )
    if spec.path is None and not embedded:
        spec.hub.check_rows(fingerprint(tasks))
    if embedded and spec.path is None:
        tasks = [_of_given_length(task, spec.embedded) for task in tasks]
    return f"{source}#{fingerprint(tasks)}", tasks


def _turns(spec: TrajectoryConfig, id: str, messages: list[Message], tokenize: Tokenize) -> list[Task]:
    """The last turns of the assistant whose prompts are of the length asked for, the earliest first."""
    low, high = spec.input_tokens
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i]
    fitting = bisect.bisect_right(ends, high, key=lambda end: len(tokenize(messages[:end])))
    tasks = []
    for end in ends[max(0, fitting - spec.turns) : fitting]:
        prompt = tokenize(messages[:end])
        if len(prompt) >= low:
            tasks.append(Task(f"{id}/{end}", messages[:end], None, prompt, spec.max_tokens, conversation=id))
    return tasks


def _conversations(
    source: str, rows: Numbered, columns: TrajectoryColumns
) -> Iterator[tuple[str, list[Message]]]:
    for where, id, row in identified(source, rows, [columns.id, columns.messages], columns.id):
        yield id, _messages(where, columns.messages, row[columns.messages])


def _messages(where: str, column: str, cell: Any) -> list[Message]:
    """The messages in a cell, a list or its JSON: texts by three roles that every chat template knows. What a tool
    answered is the user's, and calls stand as JSON behind the assistant's words."""
    try:
        messages = json.loads(cell) if isinstance(cell, str) else cell
        plain = [_message(message) for message in messages]
        if not any(message["role"] == "assistant" for message in plain):
            raise ValueError("no assistant's turn")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise InputError(
            f"{where}: {column}={shown(cell)}: allowed is a list, or its JSON, of {{'role', 'content'}} with an "
            f"assistant's turn among them ({reason})"
        ) from None
    for message in plain:
        check_text(where, column, message["content"])
    return plain


def _message(message: dict[str, Any]) -> Message:
    role, content = message["role"], message.get("content")
    if role not in _ROLES:
        raise ValueError(f"role {role!r}, of {', '.join(_ROLES)}")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(content, str | None):
        raise ValueError(f"content of type {type(content).__name__}")
    calls = message.get("tool_calls")
    parts = [content or "", json.dumps(calls) if calls else ""]
    return {"role": _ROLES[role], "content": "\n".join(part for part in parts if part)}


def _dialogues(spec: Dialogues, tokens: int, tokenize: Tokenize) -> Iterator[tuple[str, list[Message]]]:
    """Conversations that are longer than `tokens`; each goes through problems that no other one has."""
    few = _exchanges(spec, 8)
    count = 2 + 2 * 8 * tokens // len(tokenize(few))  # they differ in length; twice the mean's number is enough
    messages = _exchanges(spec, spec.size * count)
    for number in range(spec.size):
        yield f"dialogue-{number}", messages[2 * count * number : 2 * count * (number + 1)]


def _exchanges(spec: Dialogues, count: int) -> list[Message]:
    made = spec.problems(count)
    return [message for problem in made for message in (
        {"role": "user", "content": problem.question}, {"role": "assistant", "content": problem.solution})]


def _of_given_length(task: Task, spec: Dialogues) -> Task:
    draw = random.Random(f"length-{spec.seed}-{task.id}")
    return replace(task, max_tokens=task.max_tokens or draw.randint(*spec.output_tokens), ignore_eos=True)
