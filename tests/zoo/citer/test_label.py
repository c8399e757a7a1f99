"""CITER's three cases, and the rollouts of its second round, on two models whose tokens are scripted."""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.scripted import scripted
from tests.zoo.algorithms import pair as routed_pair
from tokenrouter.core import InputError
from tokenrouter.engine import load_engine
from zoo.citer.label import BOTH_WRONG, LARGE_RIGHT, SMALL_RIGHT, Labeller, kinds_of
from zoo.gold import Gold
from zoo.offline import Offline
from zoo.walk import Record

EOS, PROMPT = 9, [30, 1]
GOLD = "2 3 4 5"  # and EOS; the answer is what stands before it
RIGHT = {1: 2, 2: 3, 3: 4, 4: 5, 5: EOS, 6: 4, 7: 8, 8: EOS, 20: 20}


class Pair(SimpleNamespace):
    """Two engines and problems, without files of models and data around them."""

    def right(self, record: Record, task: Any) -> bool:
        ids = record.token_ids
        return len(ids) > 1 and ids[-1] == EOS and ids[-2] == task.expected


class Tokenizer:
    eos_token_id = EOS

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    def engine(chain: dict[int, int], **options: Any) -> Any:
        folder = tmp_path_factory.mktemp("scripted")
        scripted(chain, eos_token_id=EOS, **options).save_pretrained(folder)
        return load_engine("torch", path=str(folder), capacity_tokens=1024)

    def made(small: dict[int, int], large: dict[int, int] | None = None, *, solution: str | None = GOLD,
             unsure: tuple[int, ...] = (), problems: int = 1) -> Pair:
        tasks = [SimpleNamespace(solution=solution, expected=5) for _ in range(problems)]
        return Pair(
            small=engine(RIGHT | small, logits=dict.fromkeys(unsure, 1.0)), large=engine(RIGHT | (large or {})),
            prompts=[PROMPT] * problems, tasks=tasks, workload=SimpleNamespace(max_tokens=12),
            options=SimpleNamespace(decode_batch=4, seed=0), setup=SimpleNamespace(tokenizer=Tokenizer()),
        )

    return made


def test_truth_table_of_kinds() -> None:
    gold = torch.tensor([1, 1, 1, 1])
    small, large = torch.tensor([1, 1, 2, 2]), torch.tensor([1, 2, 1, 2])
    assert kinds_of(small, large, gold).tolist() == [SMALL_RIGHT, SMALL_RIGHT, LARGE_RIGHT, BOTH_WRONG]


@pytest.mark.parametrize(("small", "large", "kind", "label"), [
    ({}, {}, SMALL_RIGHT, 1),
    ({}, {3: 7}, SMALL_RIGHT, 1),  # whatever the large model says
    ({3: 7}, {}, LARGE_RIGHT, 0),
    ({3: 7}, {3: 20}, BOTH_WRONG, 0),  # 2 3 7 8 EOS: the small model alone ends with 8
    ({3: 5}, {3: 20}, BOTH_WRONG, 1),  # 2 3 5 EOS: another way to 5
    ({3: 20}, {3: 7}, BOTH_WRONG, 0),  # no end in 12 tokens
    ({3: EOS}, {3: 7}, BOTH_WRONG, 0),  # 2 3 EOS: ends with 3
])
def test_labels(make: Callable[..., Any], small: dict[int, int], large: dict[int, int], kind: int, label: int) -> None:
    rows = Labeller(make(small, large)).label(slice(0, 1))
    assert rows.gold.tolist() == [2, 3, 4, 5, EOS]
    assert (rows.kinds[2].item(), rows.labels[2].item()) == (kind, label)
    assert rows.kinds.tolist() == [kind if t == 2 else SMALL_RIGHT for t in range(5)]
    assert rows.token_ids[2].item() == (small.get(3) or 4)


def test_the_next_round_asks_both_models_together(make: Callable[..., Any]) -> None:
    # Both wrong after 3. The small model goes on 6 -> 8, which ends wrong; the large one would say 6 -> 4.
    pair = make({3: 6, 6: 8}, {3: 7}, unsure=(6,), problems=3)
    labeller = Labeller(pair)
    rows = labeller.label(slice(0, 3))
    assert rows.labels[rows.kinds == BOTH_WRONG].tolist() == [0, 0, 0]
    for threshold, label in ((0.5, 1), ("never", 0)):  # by entropy, which is high after 6 only
        routed = Offline(routed_pair(threshold=threshold), [pair.small, pair.large])
        new = labeller.relabel(rows, slice(1, 3), routed)
        assert new.labels.tolist() == [label] * 2 and new.problems.tolist() == [0, 1]


def test_rows_say_of_which_problem_they_are(make: Callable[..., Any]) -> None:
    pair = make({}, problems=2)
    pair.tasks[0].solution = "2 " * 12  # too long
    rows = Labeller(pair).label(slice(0, 2))
    assert rows.problems.tolist() == [1] * 5
    assert rows.hidden.shape == (5, 64) and rows.hidden[0].argmax() == 1


def test_without_solutions_right_samples_of_the_large_model_are_gold(make: Callable[..., Any]) -> None:
    pair = make({}, {3: 5}, solution=None, problems=2)
    pair.tasks[1].expected = 8
    gold = Gold(pair)(slice(0, 2))
    assert {place: record.token_ids for place, record in gold.items()} == {0: [2, 3, 5, EOS]}
    pair.tasks[0].expected = 8
    with pytest.raises(InputError, match="problems: of 2 none has a worked solution, and the large model answers none"):
        Gold(pair)(slice(0, 2))
