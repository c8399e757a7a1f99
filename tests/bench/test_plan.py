"""Prompts that a model's chat template refuses."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bench.plan import prepare
from tests.bench.conftest import Compose
from tokenrouter.core import InputError

SAYS = "{% if messages | length > 1 %}{{ raise_exception('no such\\nturns') }}{% endif %}hi"


@pytest.fixture
def model(folders: dict[str, Path], tmp_path: Path) -> str:
    """A tokenizer of the models' vocabulary whose template takes one message alone."""
    tokenizer = AutoTokenizer.from_pretrained(folders["small"])
    tokenizer.chat_template = SAYS
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_a_refused_conversation_is_one_error(composed: Compose, model: str, tmp_path: Path) -> None:
    turns = [{"role": role, "content": "x"} for role in ("system", "user", "assistant")]
    (tmp_path / "mine.jsonl").write_text(json.dumps({"traj_id": "t7", "messages": turns}))
    values = composed("workload=agentic", f"workload.path={tmp_path / 'mine.jsonl'}", "workload.input_tokens=[1,99]",
                      f"models.tokenizer={model}")
    with pytest.raises(InputError) as error:
        prepare(values)
    assert str(error.value) == (
        f"conversation t7: models.tokenizer={model!r}: its chat template refuses 2 messages (system, user): no such "
        "turns; allowed is one that takes them")


def test_a_refused_question_is_one_error(composed: Compose, model: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    tokenizer.save_pretrained(model)
    (tmp_path / "mine.jsonl").write_text('{"id": "q3", "problem": "?", "answer": "1"}')
    values = composed("workload=aime", f"workload.path={tmp_path / 'mine.jsonl'}", f"models.tokenizer={model}")
    with pytest.raises(InputError, match=rf"^problem q3: models\.tokenizer='{model}': .* 1 messages \(user\): never;"):
        prepare(values)
