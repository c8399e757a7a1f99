"""Generated problems: right in their arithmetic, repeatable, and disjoint between splits in their numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tokenrouter.core import InputError
from zoo.tasks.arithmetic import SPLITS, Problem, problems, split_of
from zoo.tasks.wordings import HELDOUT, TRAINED

N = 1500


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Problem]]:
    return {split: problems(split, N) + problems(split, 20, seed=1, max_steps=60) for split in SPLITS}


def pairs(problem: Problem) -> list[tuple[str, str]]:
    return list(pairwise(problem.equations))


def test_pairs_of_equations_never_occur_in_two_splits(drawn: dict[str, list[Problem]]) -> None:
    seen = {split: {pair for problem in drawn[split] for pair in pairs(problem)} for split in SPLITS}
    for split in SPLITS:
        assert len(seen[split]) > N
        assert all(split_of(*pair) == split for pair in seen[split])
        for other in SPLITS:
            assert other == split or not seen[split] & seen[other]


def test_no_test_chain_occurs_elsewhere_not_even_inside_a_longer_one(drawn: dict[str, list[Problem]]) -> None:
    elsewhere = "\n".join(
        "; ".join(problem.equations) for split in SPLITS if split != "test" for problem in drawn[split]
    )
    tests = "\n".join("; ".join(problem.equations) for problem in drawn["test"])
    assert "; ".join(drawn["test"][0].equations) in tests
    for problem in drawn["test"]:
        assert "; ".join(problem.equations) not in elsewhere


def test_splits_have_the_same_mix_of_operators(drawn: dict[str, list[Problem]]) -> None:
    for operator in "+-*/":
        shares = []
        for split in SPLITS:
            equations = [e for problem in drawn[split][:N] for e in problem.equations]
            shares.append(sum(f" {operator} " in e for e in equations) / len(equations))
        assert max(shares) - min(shares) < 0.03
        assert min(shares) > 0.1


def test_arithmetic_is_right_and_within_0_to_999(drawn: dict[str, list[Problem]]) -> None:
    reckon = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a // b if a % b == 0 else None,
    }
    for problem in (p for split in SPLITS for p in drawn[split]):
        previous = None
        for equation in problem.equations:
            left, operator, right, _, result = equation.split()
            assert previous is None or left == previous
            assert reckon[operator](int(left), int(right)) == int(result)
            assert 0 <= int(result) <= 999
            previous = result
        assert previous == str(problem.answer)


def test_question_and_solution_tell_the_same_chain(drawn: dict[str, list[Problem]]) -> None:
    for problem in drawn["router"][:200]:
        numbers = [problem.equations[0].split()[0]] + [e.split()[2] for e in problem.equations]
        words = "".join(c if c.isdigit() else " " for c in problem.question).split()
        assert words == numbers
        assert all(f": {e}. " in problem.solution for e in problem.equations)
        assert problem.solution.endswith(f"\\boxed{{{problem.answer}}}.")


def test_problem_does_not_depend_on_how_many_are_drawn() -> None:
    assert problems("test", 40)[:7] == problems("test", 7)
    assert problems("test", 7) != problems("test", 7, seed=1)
    assert (
        len({p.id for s in (0, 1) for w in ("trained", "heldout") for p in problems("test", 20, s, wordings=w)}) == 80
    )


def test_first_problem_stays_the_same_from_release_to_release() -> None:
    """A change here makes shipped models' figures and recorded results incomparable."""
    first = problems("test", 1)[0]
    assert first.equations == ("198 * 2 = 396", "396 + 103 = 499")
    assert first.question == (
        "Max has a bag with 198 shells in it. Then the number of shells is multiplied by 2. "
        "Next, a friend gives Max 103 more. What is the number of shells now?"
    )


def test_heldout_wordings_tell_the_same_numbers_in_phrases_never_trained() -> None:
    trained, heldout = problems("test", 50), problems("test", 50, wordings="heldout")
    assert [p.equations for p in trained] == [p.equations for p in heldout]
    assert all(a.question != b.question for a, b in zip(trained, heldout, strict=True))
    for operator in TRAINED.steps:
        assert not set(TRAINED.steps[operator]) & set(HELDOUT.steps[operator])
    assert not set(TRAINED.opening) & set(HELDOUT.opening)
    assert not set(TRAINED.ask) & set(HELDOUT.ask)


def test_steps_are_bounded_as_asked() -> None:
    assert {len(p.equations) for p in problems("train", 200)} == {2, 3, 4, 5, 6}
    assert {len(p.equations) for p in problems("train", 3, min_steps=40, max_steps=40)} == {40}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"split": "dev", "n": 1}, "split"),
        ({"split": "test", "n": 1, "wordings": "odd"}, "wordings"),
        ({"split": "test", "n": -1}, "n"),
        ({"split": "test", "n": 1, "min_steps": 1}, "min_steps"),
        ({"split": "test", "n": 1, "min_steps": 4, "max_steps": 3}, "max_steps"),
    ],
)
def test_bad_input_names_field_and_what_is_allowed(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=rf"{field}.*allowed"):
        problems(**arguments)  # type: ignore[arg-type]
