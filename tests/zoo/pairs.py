"""Two engines with scripted models, and problems whose solutions are token ids: what labels are made of."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.scripted import scripted
from tokenrouter.engine import load_engine
from zoo.walk import Record

EOS, PROMPT = 9, [30, 1]
GOLD = "2 3 4 5"  # and EOS; the answer is what stands before it
RIGHT = {1: 2, 2: 3, 3: 4, 4: 5, 5: EOS, 6: 4, 7: 8, 8: EOS, 20: 20}


class Tokenizer:
    eos_token_id = EOS

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}


class Pair(SimpleNamespace):
    """As zoo.labels.Pair, without files of models and data around it."""

    def right(self, record: Record, task: Any) -> bool:
        ids = record.token_ids
        return len(ids) > 1 and ids[-1] == EOS and ids[-2] == task.expected


def scripted_pair(
    folder: Path, small: dict[int, int], large: dict[int, int] | None = None, *, solution: str | None = GOLD,
    unsure: tuple[int, ...] = (), problems: int = 1,
) -> Pair:
    """Models that say what is right but for `small` and `large`; the small one is `unsure` after some tokens."""

    def engine(name: str, chain: dict[int, int], unsure: tuple[int, ...] = ()) -> Any:
        model = scripted(RIGHT | chain, eos_token_id=EOS, logits=dict.fromkeys(unsure, 1.0))
        model.save_pretrained(folder / name)
        return load_engine("torch", path=str(folder / name), capacity_tokens=1024)

    return Pair(
        small=engine("small", small, unsure), large=engine("large", large or {}), prompts=[PROMPT] * problems,
        tasks=[SimpleNamespace(solution=solution, expected=5) for _ in range(problems)],
        workload=SimpleNamespace(max_tokens=12), options=SimpleNamespace(decode_batch=4, seed=0),
        setup=SimpleNamespace(tokenizer=Tokenizer()),
    )
