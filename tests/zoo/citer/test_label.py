"""CITER's three cases, and the rollouts of its second round, on two models whose tokens are scripted."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.zoo.algorithms import pair as routed_pair
from tests.zoo.pairs import EOS, scripted_pair
from tokenrouter.core import InputError
from zoo.citer.label import BOTH_WRONG, LARGE_RIGHT, SMALL_RIGHT, Labeller, kinds_of
from zoo.gold import Gold
from zoo.offline import Offline


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
def test_labels(tmp_path: Path, small: dict[int, int], large: dict[int, int], kind: int, label: int) -> None:
    rows = Labeller(scripted_pair(tmp_path, small, large)).label(slice(0, 1))
    assert rows.gold.tolist() == [2, 3, 4, 5, EOS]
    assert (rows.kinds[2].item(), rows.labels[2].item()) == (kind, label)
    assert rows.kinds.tolist() == [kind if t == 2 else SMALL_RIGHT for t in range(5)]
    assert rows.token_ids[2].item() == (small.get(3) or 4)


def test_the_next_round_asks_both_models_together(tmp_path: Path) -> None:
    # Both wrong after 3. The small model goes on 6 -> 8, which ends wrong; the large one would say 6 -> 4.
    pair = scripted_pair(tmp_path, {3: 6, 6: 8}, {3: 7}, unsure=(6,), problems=3)
    labeller = Labeller(pair)
    rows = labeller.label(slice(0, 3))
    assert rows.labels[rows.kinds == BOTH_WRONG].tolist() == [0, 0, 0]
    for threshold, label in ((0.5, 1), ("never", 0)):  # by entropy, which is high after 6 only
        routed = Offline(routed_pair(threshold=threshold), [pair.small, pair.large])
        new = labeller.relabel(rows, slice(1, 3), routed)
        assert new.labels.tolist() == [label] * 2 and new.problems.tolist() == [0, 1]


def test_rows_say_of_which_problem_they_are(tmp_path: Path) -> None:
    pair = scripted_pair(tmp_path, {}, problems=2)
    pair.tasks[0].solution = "2 " * 12  # too long
    rows = Labeller(pair).label(slice(0, 2))
    assert rows.problems.tolist() == [1] * 5
    assert rows.hidden.shape == (5, 64) and rows.hidden[0].argmax() == 1


def test_without_solutions_right_samples_of_the_large_model_are_gold(tmp_path: Path) -> None:
    pair = scripted_pair(tmp_path, {}, {3: 5}, solution=None, problems=2)
    pair.tasks[1].expected = 8
    gold = Gold(pair)(slice(0, 2))
    assert {place: record.token_ids for place, record in gold.items()} == {0: [2, 3, 5, EOS]}
    pair.tasks[0].expected = 8
    with pytest.raises(InputError, match="problems: of 2 none has a worked solution, and the large model answers none"):
        Gold(pair)(slice(0, 2))
