"""The vocabulary that everything else is spelled in: what a request is, and what state it can be in."""
from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

MAX_LOGPROBS = 20  # alternatives to a token that a request may ask for


class InputError(ValueError):
    """Something the user gave is wrong.

    The message is one line that names the field, the value and what is allowed. Raised before any process is
    started; commands print it and leave with exit code 2.
    """


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How tokens are drawn and when a request ends.

    `seed` keys every draw (tokenrouter.sampling); a request without one is given one by the front end.
    `max_tokens` counts accepted tokens. `stop_token_ids` end a request like EOS does; before `min_tokens` accepted
    tokens neither can be drawn. Temperature 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch the filters off.
    `presence_penalty` is taken off the logit of each token that the answer has, `frequency_penalty` as often as it
    has it; `repetition_penalty` divides what prompt or answer have (multiplies below 0). `logprobs`: how many
    alternatives to each token are reported with their log-probabilities; -1: not even its own. `signals`: each token is
    reported with the number by which its router decided, where the router gives one.
    """

    seed: int
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int = -1
    signals: bool = False

    def finish_reason(self, token: int, num_output: int, eos_token_ids: Collection[int]) -> FinishReason | None:
        """Why an answer of `num_output` accepted tokens, of which `token` is the last, is over; None: it is not."""
        if token in self.stop_token_ids or (token in eos_token_ids and not self.ignore_eos):
            return FinishReason.STOP
        return FinishReason.LENGTH if num_output >= self.max_tokens else None

    def check(self) -> None:
        """Raise InputError for the first value that is out of range."""
        for name, low, high in (
            ("seed", 0, 2**63 - 1), ("max_tokens", 1, 2**31), ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0), ("top_k", 0, 2**31), ("min_p", 0.0, 1.0), ("min_tokens", 0, self.max_tokens),
            ("presence_penalty", -2.0, 2.0), ("frequency_penalty", -2.0, 2.0), ("repetition_penalty", 0.0, 100.0),
            ("logprobs", -1, MAX_LOGPROBS),
        ):
            value = getattr(self, name)
            above = name in ("top_p", "repetition_penalty")  # 0 itself is not allowed
            if not low <= value <= high or (above and value == 0):
                raise InputError(f"sampling.{name}={value!r}: allowed is {'above ' if above else ''}{low} to {high}")


class Logprobs(NamedTuple):
    """Of one token: its log-probability under the raw logits, and the most likely ids with theirs."""

    own: float
    top_ids: list[int]
    top: list[float]


class Status(enum.Enum):
    """Where a request stands in one subserver."""

    WAITING = "waiting"  # nothing of it has been computed here yet
    RUNNING = "running"  # here, and scheduled
    PENDING = "pending"  # away at a peer; its KV is resident or evicted
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(slots=True, eq=False)
class Request:
    """One request as one subserver sees it.

    `ids` are the prompt and the accepted tokens, one list; `authors[t]` is the role that wrote accepted token t.
    `kv_len` of the ids are in this engine's KV: what lies beyond is what the next step appends, so that prefill,
    decode, resume and recompute are one thing. `known[r]` is how many ids role r is known to hold.

    `drafts` continue the ids, and so does KV, but nobody has accepted them: they are this model's own, or a peer's for
    this model to verify, for which its next step gives the logits of its last `num_logits` positions.
    """

    rid: str
    algorithm: int
    role: int
    entry: int
    sampling: SamplingParams
    params: dict[str, Any]
    ids: list[int]
    prompt_len: int
    known: list[int]
    authors: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    kv_len: int = 0
    resident: bool = False
    state: dict[str, Any] = field(default_factory=dict)
    counts: tuple[int, int] = (0, 0)  # handoffs and discarded proposals so far, wherever they happened
    extra: Any = None  # what the router sent along at the last handoff from here
    arrived: float = 0.0  # when it last became ready here, monotonic seconds
    admitted: bool = False  # whether a step has run since then
    signal: float | None = None  # by which the token that is next was routed, here or where it came from
    order: int = 0  # rank of its first arrival, for fairness and preemption
    drafts: list[int] = field(default_factory=list)
    num_logits: int = 1

    @property
    def num_output(self) -> int:
        return len(self.ids) - self.prompt_len

    @property
    def length(self) -> int:
        """With the drafts: what the next step leaves in KV."""
        return len(self.ids) + len(self.drafts)

    @property
    def asked(self) -> range:
        """For each position whose logits the next step gives, how many drafts come before what is drawn there."""
        return range(len(self.drafts) + 1 - self.num_logits, len(self.drafts) + 1)

    def span(self, start: int, end: int) -> list[int]:
        """Ids and drafts from `start` to `end`."""
        count = len(self.ids)
        return self.ids[start:end] + self.drafts[max(0, start - count) : max(0, end - count)]

    def append(self, token_ids: list[int]) -> None:
        """Ids that were accepted elsewhere. KV of drafts stays valid as far as they turn out to be these."""
        same = 0
        while same < min(len(token_ids), len(self.drafts)) and token_ids[same] == self.drafts[same]:
            same += 1
        self.kv_len = min(self.kv_len, len(self.ids) + same)
        self.ids.extend(token_ids)
        self.drafts = []

    def expect(self, drafts: list[int]) -> None:
        """The next step is to give the logits that it takes to verify these."""
        self.drafts, self.num_logits = drafts, len(drafts) + 1

    def accept(self, token_ids: list[int], authors: list[int]) -> None:
        self.ids.extend(token_ids)
        self.authors.extend(authors)
        self.known[self.role] = len(self.ids)
