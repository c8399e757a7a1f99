"""The phrases that generated word problems are made of: `TRAINED` and `HELDOUT` questions, and the worked answer's.

Fields: {n} the person, {i} the items, {a} the first number, {b} the step's operand, {x} the number before a step,
{y} the one after it. Questions of `HELDOUT` are never shown in training; worked answers have one set of phrases, with
several for the same thing, between which nothing but chance decides.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = tuple(
    "Tom Ana Ben Mia Leo Zoe Sam Eva Max Ida Raj Kim Ali Liv Jon Amy Noah Emma Omar Nina Hugo Lucy Yuki Rosa".split()
)
ITEMS = tuple(
    "pens books coins cards apples shells stamps marbles "
    "stickers pencils beads stones buttons tickets nuts keys".split()
)


@dataclass(frozen=True)
class Question:
    """Alternatives for the parts of a question; `steps` maps an operator to its phrases."""

    opening: tuple[str, ...]
    steps: dict[str, tuple[str, ...]]
    ask: tuple[str, ...]


TRAINED = Question(
    opening=(
        "{n} starts with {a} {i}.",
        "At first {n} has {a} {i}.",
        "There are {a} {i} in the box of {n}.",
        "{n} owns {a} {i}.",
        "{n} has a bag with {a} {i} in it.",
        "In the morning, {n} counts {a} {i}.",
    ),
    steps={
        "+": (
            "Then {n} buys {b} more.",
            "Then {n} finds {b} more.",
            "Next, a friend gives {n} {b} more.",
            "{n} wins {b} more in a game.",
            "Later, {b} new {i} are added.",
            "After that, {n} gets another {b} {i}.",
            "{n} picks up {b} extra {i}.",
            "A shop sends {n} {b} more {i}.",
        ),
        "-": (
            "Then {n} sells {b} of them.",
            "Then {n} loses {b} of them.",
            "Next, {n} gives {b} of them away.",
            "{n} throws away {b} {i}.",
            "Later, {b} of the {i} are taken out.",
            "After that, {n} has {b} fewer {i}.",
            "A friend takes {b} {i} from {n}.",
            "{n} uses up {b} of the {i}.",
        ),
        "*": (
            "Then the number of {i} is multiplied by {b}.",
            "Next, {n} makes the pile {b} times as large.",
            "{n} now gets {b} {i} for every one.",
            "Later, the count grows to {b} times its size.",
            "After that, there are {b} times as many {i}.",
            "A machine turns each one into {b} {i}.",
        ),
        "/": (
            "Then {n} shares them equally among {b} friends and keeps one share.",
            "Next, only one part out of {b} equal parts is kept.",
            "{n} splits the {i} into {b} equal groups and takes one group.",
            "Later, the number of {i} is divided by {b}.",
            "After that, {n} keeps just one of every {b} {i}.",
            "The {i} go evenly into {b} boxes, and {n} keeps one box.",
        ),
    },
    ask=(
        "How many {i} does {n} have now?",
        "Find the final number of {i}.",
        "How many {i} are there at the end?",
        "What is the number of {i} now?",
        "Work out how many {i} {n} has left.",
    ),
)

HELDOUT = Question(
    opening=(
        "{n} begins the day with {a} {i}.",
        "A box that {n} keeps holds {a} {i}.",
        "We know that {n} has {a} {i}.",
    ),
    steps={
        "+": (
            "{n} gets {b} more from a friend.",
            "Now {b} other {i} are put in by {n}.",
            "{n} adds {b} {i} to the pile.",
        ),
        "-": (
            "{n} gives a friend {b} of the {i}.",
            "Now {n} takes out {b} and sells them.",
            "Sadly, {b} {i} go missing.",
        ),
        "*": (
            "The pile of {n} is now {b} times as big.",
            "Now each of the {i} is replaced by {b} new ones.",
            "{n} multiplies the count of {i} by {b}.",
        ),
        "/": (
            "{n} divides the {i} evenly by {b} and keeps one share.",
            "Now {b} friends get equal shares of the {i}, and only one share is left.",
            "Just one group of the {b} equal groups is kept by {n}.",
        ),
    },
    ask=(
        "What number of {i} does {n} have at the end?",
        "Count the {i} that are left.",
    ),
)

# The worked answer. Alternatives are drawn evenly, so that two models part there without either being wrong.
BEGIN = (
    "Let us work step by step. {n} starts with {a} {i}.",
    "We go through it in order. First there are {a} {i}.",
)
REASON = {
    "+": ("{n} gets {b} more, so we add", "The pile grows by {b}, so we add", "There are {b} new ones, so we add"),
    "-": (
        "{n} has {b} fewer, so we subtract",
        "The pile shrinks by {b}, so we subtract",
        "We take {b} away, so we subtract",
    ),
    "*": (
        "The pile becomes {b} times as large, so we multiply",
        "We need {b} times the pile, so we multiply",
        "Each one counts {b} times, so we multiply",
    ),
    "/": (
        "Only one of {b} equal shares is kept, so we divide",
        "There are {b} equal shares, so we divide",
        "We need one part in {b}, so we divide",
    ),
}
RESTATE = ("So there are {y} {i}.", "Now {n} has {y} {i}.", "That makes {y} {i}.")
CONCLUDE = ("Therefore, the final answer is", "The answer is")
