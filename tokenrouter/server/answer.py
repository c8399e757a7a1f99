"""One answer on its way: tokens come in, text that may go out comes out."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from tokenrouter.core import Logprobs
from tokenrouter.server.frontend import EndEvent, TokenEvent
from tokenrouter.server.prepare import Job
from tokenrouter.server.text import Detokenizer, StopStrings


@dataclass
class Piece:
    """What came at once. `finish`: why the answer ended, on its last piece only."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    signals: list[float | None] = field(default_factory=list)
    finish: str | None = None
    stop_reason: str | int | None = None

    def add(self, other: Piece) -> None:
        self.text += other.text
        self.token_ids += other.token_ids
        self.roles += other.roles
        self.logprobs += other.logprobs
        self.signals += other.signals
        self.finish, self.stop_reason = other.finish, other.stop_reason


class Answer:
    """`stopped`: a stop string was found, so what comes further does not count and the request can be aborted."""

    def __init__(self, job: Job, tokenizer: PreTrainedTokenizerBase, stop_strings: Iterable[str], *,
                 include_stop: bool, skip_special_tokens: bool) -> None:
        self.job, self.num_tokens, self.stopped = job, 0, False
        self.end: EndEvent | None = None
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stops = StopStrings(list(stop_strings), include=include_stop)
        self._include = include_stop
        self._reason: str | int | None = None

    def take(self, event: TokenEvent) -> Piece:
        """Accepted tokens, in the order of their positions; nothing behind a stop string counts."""
        piece = Piece()
        for i, token in enumerate(event.token_ids):
            if self.stopped:
                break
            self.num_tokens += 1
            piece.token_ids.append(token)
            piece.roles.append(event.role)
            piece.signals.append(None if i else event.signal)
            if event.logprobs is not None:
                piece.logprobs.append(event.logprobs[i])
            if token in self.job.sampling.stop_token_ids and not self._include:
                self._reason = token  # the request ends with it: it is counted, and not shown
                continue
            piece.text += self._search(self._detokenizer.feed(token))
        return piece

    def finish(self, event: EndEvent) -> Piece:
        """The end: what was held back comes out."""
        self.end = event
        if self.stopped:
            return Piece(finish="stop", stop_reason=self._reason)
        text = self._search(self._detokenizer.flush())
        if not self.stopped:
            text += self._stops.flush()
        finish = "stop" if self.stopped else event.reason.value
        return Piece(text, finish=finish, stop_reason=self._reason)

    def _search(self, text: str) -> str:
        if self.num_tokens <= self.job.sampling.min_tokens:
            return text
        out, found = self._stops.feed(text)
        if found is not None:
            self.stopped, self._reason = True, found
        return out
