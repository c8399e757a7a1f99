"""Text in pieces is the text of the whole, wherever characters and stop strings are torn apart."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from tokenrouter.server.text import Detokenizer, StopStrings
from zoo.models.tokenizer import build

TOKENIZER: PreTrainedTokenizerBase = build(50)
TOKENS = st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=60)


@given(TOKENS, st.booleans())
def test_pieces_join_to_the_whole(tokens: list[int], skip: bool):
    detokenizer = Detokenizer(TOKENIZER, skip_special_tokens=skip)
    pieces = [detokenizer.feed(token) for token in tokens]
    whole = TOKENIZER.decode(tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert "".join(pieces) + detokenizer.flush() == whole


def test_a_character_waits_for_its_last_byte():
    tokens = TOKENIZER("a漢b", add_special_tokens=False)["input_ids"]
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.feed(token) for token in tokens]
    assert [piece for piece in pieces if piece] == ["a", "漢", "b"] and len(pieces) == 5
    assert detokenizer.flush() == ""


@given(st.text("ab", max_size=40), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
       st.lists(st.integers(1, 5), max_size=40), st.booleans())
def test_a_stop_string_is_found_as_soon_as_it_is_there(text: str, stops: list[str], cuts: list[int], include: bool):
    found_at = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    scanner, out, given_in, found = StopStrings(stops, include=include), "", 0, None
    for size in [*cuts, len(text)]:
        piece, found = scanner.feed(text[given_in : given_in + size])
        given_in += size
        out += piece
        assert text.startswith(out)
        if found:
            break
    assert (found is not None) == bool(found_at)
    if found is None:
        assert out + scanner.flush() == text
    else:
        assert given_in >= found_at[0], "not before it is complete"
        first = min(text[:given_in].find(stop) for stop in stops if stop in text[:given_in])
        assert out == text[: first + len(found) * include] and text[first:].startswith(found)


@pytest.mark.parametrize("pieces, out", [(["ab", "c"], ["a", ""]), (["ab", "d"], ["a", "bd"]), (["b", "b"], ["", "b"])])
def test_only_what_may_begin_a_stop_string_is_held(pieces: list[str], out: list[str]):
    scanner = StopStrings(["bc"])
    assert [scanner.feed(piece)[0] for piece in pieces] == out
