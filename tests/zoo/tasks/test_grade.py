from __future__ import annotations

import os
import time

import pytest

from tokenrouter.core import InputError
from zoo.tasks import answers
from zoo.tasks.grade import Grade, Grader


def by_whim(answer: str, expected: str) -> bool:
    """What a computer algebra system does at its worst."""
    if answer == "crash":
        os._exit(1)
    if answer == "hang":
        time.sleep(3600)
    if answer == "raise":
        raise ArithmeticError("cannot")
    return answer == expected


def never_starts(answer: str, expected: str) -> bool:
    os._exit(1)


def test_boxed_integers_are_graded_without_a_process() -> None:
    with Grader("boxed", compare=never_starts) as grader:
        assert grader.grade_all([
            (r"Step 1: 177 + 331 = 508. The answer is \boxed{508}.", "508"),
            (r"\boxed{507}", "508"),
            (r"\boxed{025.}", "25"),
            (r"\boxed{1} at first, then \boxed{ 2 }", "2"),
            (r"\boxed{2} and then a cut \boxed{2", "2"),
            ("the answer is 508", "508"),
            (r"\boxed{}", "508"),
            (r"\boxed{5}", None),
        ]) == [
            Grade(True, "508"), Grade(False, "507"), Grade(True, "025"), Grade(True, "2"), Grade(True, "2"),
            Grade(False, None), Grade(False, None), Grade(None, "5"),
        ]  # fmt: skip


def test_expressions_are_compared_by_meaning() -> None:
    with Grader("boxed", workers=1) as grader:
        grades = grader.grade_all([
            (r"so it is $\boxed{\frac{3}{4}}$.", "0.75"),
            (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"),
            (r"\boxed{x=27}", "27"),
            (r"\boxed{1,234}", "1234"),
            (r"\boxed{\frac{2}{4}}", r"\frac{1}{3}"),
            (r"\boxed{\frac{1}{}", "1"),
            (r"\boxed{who knows {}", "1"),
        ])  # fmt: skip
    assert [grade.correct for grade in grades] == [True, True, True, True, False, False, False]
    assert grades[0].answer == r"\frac{3}{4}"


@pytest.mark.parametrize(("text", "answer"), [
    ("16 - 3 = 13\n#### 18", "18"),
    ("#### $1,800", "1800"),
    ("#### 5\nOr rather\n#### -6", "-6"),
    (r"there are 20, so \boxed{18} of 19", "18"),
    (r"#### 4 \boxed{5}", "5"),
    (r"#### Step 3: total" "\n" r"So she makes \boxed{18} dollars.", "18"),
    ("#### Step 3: total\n16 - 3 = 13", "13"),
    ("#### 5 eggs a day, of 7", "5"),
    (r"#### **\$-5**", "-5"),
    ("#### -$1,250.50", "-1250.50"),
    ("####18.", "18"),
    ("#### 5\n#### Remarks\nThere are 9.", "5"),
    (r"\boxed{18 eggs}", "18"),
    (r"\boxed{\$1,800 \text{ per day}}", "1800"),
    (r"\boxed{18\%}", "18"),
    (r"\boxed{-18 \text{ degrees}}", "-18"),
    (r"\boxed{- \$18}", "-18"),
    (r"\boxed{18\pi}", r"18\pi"),
    (r"\boxed{\sqrt{2}}", r"\sqrt{2}"),
    (r"\boxed{5!}", "5!"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    ("She has 3 left of 1,250.50.", "1250.50"),
    ("none", None),
])  # fmt: skip
def test_final_numbers(text: str, answer: str | None) -> None:
    assert answers.extract("final_number", text) == answer


@pytest.mark.parametrize(("text", "answer"), [
    (r"It is (A) or (B), so \boxed{B}.", "B"),
    (r"\boxed{(C) mall}", "C"),
    (r"\boxed{\text{D}}", "D"),
    ("The answer is (B) library.", "B"),
    ("First, the answer is A. No: the answer is **E**.", "E"),
    ("Answer: C", "C"),
    ("I think that (A) is wrong and (D) is right", "D"),
    ("B", "B"),
    (" B.\n", "B"),
    ("A bank is where money is.", None),
    (r"\boxed{mall}", None),
    ("The answer is C. Option D is wrong.", "C"),
    ("The correct option is C. Option D is wrong.", "C"),
    ("The answer is option **C**, as choice D is wrong.", "C"),
    ("I would take option C.", "C"),
    ("**Answer**: C", "C"),
    ("ANSWER IS (C)", "C"),
    ("C. mall", "C"),
    ("(C) mall", "C"),
    ("C) mall, as (D) is far away", "C"),
    ("**C**\n\nOption D is wrong.", "C"),
    ("**C. mall**", "C"),
    ("C\nBecause it is.", "C"),
    ("A. bank", "A"),
    ("A. bank: no.\nB. mall: far.\nIt has to be option B.", "B"),
    ("(A) bank: no. (B) mall: yes.", "B"),
    ("A bank is near. The answer is B.", "B"),
    (r"\boxed{c}", "C"),
    (r"\boxed{\text{(c) mall}}", "C"),
    (r"\boxed{**c**}", "C"),
    (r"\boxed{a mall}", None),
    (r"\boxed{I}", None),
])  # fmt: skip
def test_letters_of_options(text: str, answer: str | None) -> None:
    assert answers.extract("choice", text) == answer


def test_options_are_graded_without_a_process_and_none_means_never() -> None:
    with Grader("choice", compare=never_starts) as grader:
        grades = grader.grade_all([(r"\boxed{B}", "B"), (r"\boxed{A}", "B"), ("?", "B"), ("B", None)])
    assert [grade.correct for grade in grades] == [True, False, False, None]
    with Grader("none", compare=never_starts) as grader:
        assert grader.grade_all([(r"\boxed{B}", None)]) == [Grade(None, None)]


def test_a_final_number_equals_its_other_spellings() -> None:
    with Grader("final_number", compare=never_starts) as grader:
        grades = grader.grade_all([("#### 18.00", "18"), ("#### 18.01", "18"), ("?", "18")])
    assert [grade.correct for grade in grades] == [True, False, False]


@pytest.mark.parametrize("answer", ["0", "7", "-7", "+7", "007", "508", "7.0", "7.25", "-0", "999999999999"])
@pytest.mark.parametrize("expected", ["0", "7", "-7", "508", "7.0", "999999999999", "999999999998"])
def test_the_plain_comparison_agrees_with_math_verify(answer: str, expected: str) -> None:
    plain = answers.plainly_equal(answer, expected)
    assert plain is not None
    assert plain == answers.verified(answer, expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_crash_costs_its_own_grade_only(workers: int) -> None:
    words = ["yes", "crash", "yes", "no", "raise", "yes", "crash"]
    with Grader("boxed", workers=workers, timeout_s=120, compare=by_whim) as grader:
        grades = grader.grade_all([(rf"\boxed{{{word}}}", "yes") for word in words])
        again = grader.grade_all([(r"\boxed{yes}", "yes")])
    assert [grade.correct for grade in grades] == [True, None, True, False, None, True, None]
    assert [grade.answer for grade in grades] == words
    assert again == [Grade(True, "yes")]


def test_a_hang_costs_its_own_grade_only() -> None:
    with Grader("boxed", workers=1, timeout_s=4, compare=by_whim) as grader:  # long enough for a busy machine
        grades = grader.grade_all([(rf"\boxed{{{word}}}", "yes") for word in ("hang", "yes")])
    assert grades == [Grade(None, "hang"), Grade(True, "yes")]


def test_an_expected_answer_that_cannot_be_read_gives_no_grade() -> None:
    with Grader("boxed", workers=1) as grader:
        assert grader.grade_all([(r"\boxed{x}", "")]) == [Grade(None, "x")]


def test_a_run_survives_processes_that_cannot_start() -> None:
    with Grader("boxed", workers=1, compare=never_starts) as grader:
        assert grader.grade_all([(r"\boxed{x}", "x"), (r"\boxed{1}", "1")]) == [Grade(None, "x"), Grade(True, "1")]


def test_leaving_ends_the_processes() -> None:
    import multiprocessing

    with Grader("boxed", workers=1, compare=by_whim) as grader:
        grader.grade_all([(r"\boxed{yes}", "yes")])
        assert "grader" in [child.name for child in multiprocessing.active_children()]
    assert "grader" not in [child.name for child in multiprocessing.active_children()]


def test_an_unknown_grader_is_refused() -> None:
    with pytest.raises(InputError, match=r"workload\.grader='guess': allowed is one of boxed, final_number"):
        Grader("guess")
