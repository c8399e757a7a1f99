"""Rows of a data set, from a local file or the hub, and the tasks that they hold."""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tokenrouter.core import InputError
from zoo.tasks.answers import LETTERS

FORMATS = ("json", "jsonl", "parquet")
MARK = "{question}"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60

Numbered = list[tuple[int, Any]]  # (number as the user counts it, from 1; row)
Message = dict[str, str]


@dataclass(frozen=True)
class Task:
    """One problem: what the model is asked, and the answer it should come to (None: not graded).

    `prompt_ids`: the prompt itself where it was never text, or is tokenized already. `max_tokens`: this task's own
    bound, if it has one; with `ignore_eos` exactly as many tokens. `conversation`: tasks of one name are its turns, one
    after the other.
    """

    id: str
    prompt_messages: list[Message]
    expected: str | None
    prompt_ids: list[int] | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    conversation: str | None = None
    solution: str | None = None


class Columns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of a row's columns. Without one for ids, a row's id is its index."""

    question: str
    answer: str
    id: str | None = None
    choices: str | None = None
    solution: str | None = None

    def names(self) -> list[str]:
        named = (self.id, self.question, self.choices, self.answer, self.solution)
        return list(dict.fromkeys(name for name in named if name is not None))


def read_file(path: str, columns: Sequence[str]) -> Numbered:
    """The rows of a json (one list), jsonl or parquet file. InputError if there is none, or it cannot be read."""
    file = Path(path)
    kind = file.suffix.removeprefix(".").lower()
    allowed = f"allowed is a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file with the columns {list(columns)}"
    if kind not in FORMATS:
        raise InputError(f"workload.path={path!r}: {allowed}")
    if not file.is_file():
        raise InputError(f"workload.path={path!r}: no such file; {allowed}")
    try:
        if kind == "parquet":
            import pyarrow.parquet

            return list(enumerate(pyarrow.parquet.read_table(file).to_pylist(), 1))
        text = file.read_text(encoding="utf-8")
        if kind == "json":
            rows = json.loads(text)
            if not isinstance(rows, list):
                raise InputError(f"workload.path={path!r}: holds one {type(rows).__name__}; allowed is a list of rows")
            return list(enumerate(rows, 1))
    except (ValueError, OSError, RecursionError) as error:  # the last of lists in lists in lists
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"workload.path={path!r}: cannot be read as {kind} ({reason}); {allowed}") from None
    # Not splitlines, which also breaks at characters that JSON strings may hold as they are.
    return [(number, _parse(path, number, line)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parse(path: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"workload.path={path!r} row {number}: {line[:60]!r} is not JSON ({error}); allowed is one object a line"
        ) from None


def to_tasks(
    source: str, rows: Numbered, columns: Columns, prompt: str, answer_after: str | None, grader: str
) -> list[Task]:
    """The tasks in `rows`, asked as `prompt` says, `{question}` filled in.

    `answer_after`: the answer is what stands behind the last such mark in the answer column. `source` is how errors
    name the rows' origin. Raises InputError for the first row that is broken, doubled, short of a column, or has an
    answer that `grader` never gives, and for none at all.
    """
    tasks = []
    for where, id, row in identified(source, rows, columns.names(), columns.id):
        question = _text(where, row, columns.question)
        expected = _text(where, row, columns.answer)
        if columns.choices is not None:
            question = f"{question}\n\n{_choices(where, row, columns.choices, expected)}"
        if answer_after is not None:
            _, mark, behind = expected.rpartition(answer_after)
            if not mark or not behind.strip():
                raise InputError(
                    f"{where}: {columns.answer}={expected[-40:]!r}: allowed is an answer behind {answer_after!r}")
            expected = behind.strip().replace(",", "")
        if grader == "choice" and expected not in list(LETTERS):
            raise InputError(f"{where}: {columns.answer}={shown(expected)}: allowed for workload.grader=choice is a "
                             f"letter from {LETTERS[0]} to {LETTERS[-1]}")
        solution = None if columns.solution is None else _text(where, row, columns.solution)
        message = {"role": "user", "content": prompt.replace(MARK, question)}
        tasks.append(Task(id, [message], expected, solution=solution))
    return tasks


def identified(
    source: str, rows: Numbered, columns: Sequence[str], id_column: str | None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """For each row how errors name it, its id, and the row. InputError for none at all, a row that is short of a
    column, and an id that occurs twice."""
    if not rows:
        raise InputError(f"{source}: has no rows; allowed is one or more with the columns {list(columns)}")
    seen = set()
    for index, (number, row) in enumerate(rows):
        where = f"{source} row {number}"
        if not isinstance(row, dict) or any(name not in row for name in columns):
            has = list(row) if isinstance(row, dict) else type(row).__name__
            raise InputError(f"{where}: has {has}; allowed is an object with the columns {list(columns)}")
        id = str(index) if id_column is None else _text(where, row, id_column)
        if id in seen:
            raise InputError(f"{where}: {id_column}={id!r} occurs twice; allowed is an id of its own for each row")
        seen.add(id)
        yield where, id, row


def fingerprint(tasks: Sequence[Task]) -> str:
    """12 hex digits that stand for ids, prompts, expected answers, and lengths where they are given."""
    content: list[Any] = [(task.id, task.prompt_messages, task.expected) for task in tasks]
    content += [(task.max_tokens, task.ignore_eos) for task in tasks if task.max_tokens is not None]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:12]


def _choices(where: str, row: dict[str, Any], column: str, expected: str) -> str:
    """The options of a question, one a line: `(A) bank`."""
    cell = row[column]
    labels, texts = (cell.get("label"), cell.get("text")) if isinstance(cell, dict) else (None, None)
    lists = isinstance(labels, list) and isinstance(texts, list) and len(labels) == len(texts) >= 2
    if not lists or not all(isinstance(text, str) and text.strip() for text in [*labels, *texts]):
        raise InputError(
            f"{where}: {column}={shown(cell)}: allowed is {{'label': [...], 'text': [...]}}, two or more texts each")
    for text in (*labels, *texts):
        check_text(where, column, text)
    if expected not in labels:
        raise InputError(f"{where}: the answer {expected!r} is not among the labels {labels}; allowed is one of them")
    return "\n".join(f"({label}) {text}" for label, text in zip(labels, texts, strict=True))


def _text(where: str, row: dict[str, Any], column: str) -> str:
    """A cell as text; numbers without a fraction as integers."""
    value = row[column]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    other = isinstance(value, bool) or not isinstance(value, (str, int, float))
    if other or (isinstance(value, float) and not math.isfinite(value)) or not str(value).strip():
        raise InputError(f"{where}: {column}={shown(value)}: allowed is a text that is not empty, or a finite number")
    check_text(where, column, text := str(value))
    return text


def check_text(where: str, column: str, text: str) -> None:
    """InputError for halves of surrogate pairs, which JSON can spell and which are no characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {column}={shown(text)}: allowed is text that UTF-8 can encode, not "
                         f"{text[error.start]!r} at character {error.start + 1}") from None


def shown(value: Any) -> str:
    """Enough of a value to know it by, however long or deep it is."""
    return _SHORT.repr(value)
