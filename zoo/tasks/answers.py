"""What a text answers, and whether that is what was expected.

Plain numbers are compared here, exactly; everything else is left to math-verify (`verified`), with which the plain
comparison agrees.
"""

from __future__ import annotations

import logging
import re
from decimal import Decimal
from typing import Literal, cast, get_args

from tokenrouter.core import InputError

Kind = Literal["boxed", "final_number", "choice", "none"]
LETTERS = "ABCDEFGH"  # of options

_PLAIN = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?")
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}|\\[,;!$% ]|[$%\s]|\b[A-Za-z]{3,}\b")
_MARKED = re.compile(rf"####[\s*]*([+-]?[\s$\\]*{_NUMBER.pattern})")
_LETTER = rf"\(?\b([{LETTERS}])\b\)?"
_ANSWER = re.compile(r"(?i:(?:answer|(?:correct|right|best)\s+(?:option|choice))\b(?:\s+is)?"
                     rf"(?:[\s:*]+(?:option|choice)\b)?)[\s:*]*{_LETTER}")
_OPTION = re.compile(rf"(?i:choice|option)\b(?:\s+is)?[\s:*]*{_LETTER}")
_BRACKETED = re.compile(rf"\(([{LETTERS}])\)")
_FIRST = re.compile(rf"\s*\**\(?([{LETTERS}])(?:[.)](?=[\s*]|\Z)|\*\*|[^\S\n]*(?:\n|\Z))")
_LISTED = re.compile(r"\(B\)|\bB[.)]")
_LOWER = re.compile(rf"(?:\\[a-z]+\{{)?[\s(*{{]*([{LETTERS.lower()}])(?:[.)](?:\s.*)?|[\s*}}]*)", re.DOTALL)


def check_kind(name: str) -> Kind:
    """`name`, if a grader is called so; InputError otherwise."""
    if name not in get_args(Kind):
        raise InputError(f"workload.grader={name!r}: allowed is one of {', '.join(get_args(Kind))}")
    return cast(Kind, name)


def extract(kind: Kind, text: str) -> str | None:
    """The answer that `text` gives, or None.

    boxed: what the last complete `\\boxed{...}` holds. final_number: the number there without its unit, or all of it;
    without a box, the number right behind the last `####` (GSM8K's mark) that has one; without that, the last number
    in the text. Commas between thousands are taken out. choice: the letter that is boxed; without one, that behind the
    last `answer is`; without that, the one that the text begins with (`C. mall`, `**C**`); then that behind the last
    `choice` or `option`; then the last `(A)`. none: never any.
    """
    if kind == "none":
        return None
    if kind == "choice":
        return _chosen(text)
    boxed = _last_boxed(text)
    if kind == "boxed":
        return boxed
    if boxed is not None:
        bare = _UNIT.sub("", boxed)
        return bare.replace(",", "") if _NUMBER.fullmatch(bare) else boxed
    numbers = _MARKED.findall(text) or _NUMBER.findall(text)
    return re.sub(r"[,$\\\s]", "", numbers[-1]) if numbers else None


def decide(kind: Kind, answer: str, expected: str) -> bool | None:
    """Whether the answer is right; None where only `verified` can say."""
    return answer == expected if kind == "choice" else plainly_equal(answer, expected)


def plainly_equal(answer: str, expected: str) -> bool | None:
    """Whether two plain decimal numbers are the same; None if one of them is anything else."""
    if _PLAIN.fullmatch(answer) and _PLAIN.fullmatch(expected):
        return Decimal(answer) == Decimal(expected)
    return None


def verified(answer: str, expected: str) -> bool:
    """Whether math-verify holds two expressions for equal. Without any limit of time; ValueError if it cannot read
    `expected`. An answer that it cannot read is wrong."""
    import math_verify  # sympy: most of a second, and not needed for plain numbers

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that the caller has to limit the time
    config = [math_verify.LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]

    def read(content: str) -> list:
        return math_verify.parse(f"\\boxed{{{content}}}", config, parsing_timeout=None)

    gold = read(expected)
    if not gold:
        raise ValueError(f"expected answer {expected!r} cannot be read")
    return math_verify.verify(gold, read(answer), timeout_seconds=None)


def _chosen(text: str) -> str | None:
    boxed = _last_boxed(text)
    if boxed is not None:
        if letter := re.search(rf"\b([{LETTERS}])\b", boxed):
            return letter[1]
        if lower := _LOWER.fullmatch(boxed):
            return lower[1].upper()
    if found := _ANSWER.findall(text):
        return str(found[-1])
    first = _FIRST.match(text)
    if first and not (first[1] == "A" and _LISTED.search(text)):  # that may be the list of all options
        return first[1]
    for pattern in (_OPTION, _BRACKETED):
        if found := pattern.findall(text):
            return str(found[-1])
    return None


def _last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{` whose brace is closed, without a full stop at its end."""
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth, begin = 1, start + len("\\boxed{")
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[begin:end].strip().rstrip(".") or None
        start = text.rfind("\\boxed{", 0, start)
    return None
