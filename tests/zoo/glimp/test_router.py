"""Whole steps change hands: at their first token, by its entropy, and back at their last."""
from __future__ import annotations

from typing import Any

import pytest

from tests.scripted import scripted
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.interface import Algorithm
from zoo.conformance import conformance
from zoo.reference import Reference
from zoo.walk import Record

TEXTS = "zoo/models/small"  # token 3 is "!", 4 is a quote, 5 is "#", and so on through ASCII
END, ANSWER = 3, 5

test_conformance = conformance("glimp", overrides=["algo.delimiter='!'", "algo.max_step=4"], mixed={"threshold": 0.8})


def glimp(**config: Any) -> Algorithm:
    config = {"tokenizer": TEXTS, "delimiter": "!", "threshold": 0.5, **config}
    return Algorithm("glimp", ("small", "large"), {
        role: {"_target_": f"zoo.glimp.router.Glimp{role.title()}", **config} for role in ("small", "large")}, "small")


def walk(unsure: set[int], count: int, **config: Any) -> Record:
    """Both write 10, 11, 12, the delimiter, 20, 21, the delimiter, 30, 31, ...; the small one doubts what comes after
    the tokens named."""
    chain = {10: 11, 11: 12, 12: END, END: 20, 20: 21, 21: END}
    small = scripted(chain, logits=dict.fromkeys(unsure, 0.5))
    return Reference(glimp(**config), [small, scripted(chain)]).decode([10], SamplingParams(0, count))


def test_a_doubted_first_token_hands_over_the_whole_step() -> None:
    record = walk({END}, 9)
    assert record.token_ids == [11, 12, END, 20, 21, END, 20, 21, END]
    assert record.token_models == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    # After each of its steps the large model hands back, and the small one doubts the next step's first token.
    assert (record.discarded, record.handoffs) == (2, 3)


def test_doubts_within_a_step_hand_nothing_over() -> None:
    assert set(walk({11, 20}, 9).token_models) == {0}
    assert walk({10}, 9).token_models == [1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_a_step_ends_after_so_many_tokens() -> None:
    record = walk({10}, 6, max_step=2)
    assert record.token_models == [1, 1, 0, 0, 0, 0], "the third token is another step's first"


def test_after_the_answers_token_all_is_the_large_models() -> None:
    chain = {10: ANSWER, ANSWER: 12, 12: END, END: 12}
    models = [scripted(chain), scripted(chain)]
    record = Reference(glimp(answer="#"), models).decode([10], SamplingParams(0, 7))
    assert record.token_ids == [ANSWER, 12, END, 12, END, 12, END] and record.token_models == [0, *[1] * 6]
    assert record.handoffs == 1
    never = Reference(glimp(answer="#"), models).decode([10], SamplingParams(0, 7), {"threshold": "never"})
    assert set(never.token_models) == {0}


@pytest.mark.parametrize(("config", "message"), [
    ({"delimiter": ""}, "delimiter='': allowed is a text of one character or more"),
    ({"delimiter": "§§§"}, "delimiter='§§§': allowed is a text that a token of the vocabulary has"),
    ({"answer": 7}, "answer=7"), ({"max_step": 0}, "max_step=0: allowed is a whole number of tokens >= 1"),
    ({"tokenizer": "nowhere"}, "tokenizer='nowhere': allowed is an existing folder"),
])
def test_settings_that_make_no_sense(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        glimp(**config).router("small")
