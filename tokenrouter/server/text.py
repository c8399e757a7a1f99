"""From tokens to text, as it comes: characters only when they are complete, stop strings wherever they lie."""
from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # how a decoder shows bytes that are no character (yet)


def decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int], *, skip_special_tokens: bool = False) -> str:
    """The text of tokens, as they stand: nothing is tidied."""
    return str(tokenizer.decode(
        tokens, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False))


class Detokenizer:
    """The text that each further token completes; joined, the text of all tokens together.

    Decodes a window: from the last place where the text was complete before what is new, so that a token's text may
    depend on its left neighbour (word-initial spaces). Bytes of an unfinished character are held back.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._window: list[int] = []
        self._given = 0  # tokens of the window whose text was given out
        self._prefix = ""

    def feed(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(INCOMPLETE):
            return ""
        return self._give(text)

    def flush(self) -> str:
        """What is left at the end: an unfinished character shows as U+FFFD."""
        return self._give(self._decode(self._window))

    def _give(self, text: str) -> str:
        new = text[len(self._prefix) :]
        del self._window[: self._given]
        self._given = len(self._window)
        self._prefix = self._decode(self._window)
        return new

    def _decode(self, tokens: list[int]) -> str:
        return decode(self._tokenizer, tokens, skip_special_tokens=self._skip)


class StopStrings:
    """Looks for stop strings in a text that comes in pieces; holds back what may turn out to be the start of one."""

    def __init__(self, strings: Sequence[str], *, include: bool = False) -> None:
        self._strings, self._include = tuple(strings), include
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that may go out now, and the stop string that was found: the one that begins first."""
        if not self._strings:
            return text, None
        self._held += text
        found = [(at, string) for string in self._strings if (at := self._held.find(string)) >= 0]
        if found:
            at, string = min(found, key=lambda pair: pair[0])
            out, self._held = self._held[: at + len(string) * self._include], ""
            return out, string
        keep = max(self._overlap(string) for string in self._strings)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out, None

    def flush(self) -> str:
        out, self._held = self._held, ""
        return out

    def _overlap(self, string: str) -> int:
        """How many of the last characters are the beginning of `string`."""
        longest = min(len(string) - 1, len(self._held))
        return next((k for k in range(longest, 0, -1) if self._held.endswith(string[:k])), 0)
