"""Everything that travels between processes, as typed structs.

One envelope a destination and loop turn: bursts travel whole. Messages about a request carry its id, which is another
one when it begins again after a restart; an envelope carries its sender and the sender's epoch. What is stale is
dropped by the receiver.
"""
from __future__ import annotations

from typing import Any, Literal

import msgspec

from tokenrouter.core import FinishReason, Logprobs, SamplingParams

FRONT_END = -1  # sender index of the front end


class _Message(msgspec.Struct, array_like=True, tag=True):
    pass


class Opening(msgspec.Struct, array_like=True):
    """What a subserver must know of a request that it has not seen: it rides in the first message about it."""

    algorithm: int
    entry: int
    prompt_len: int
    sampling: SamplingParams
    params: dict[str, Any]


class Submit(_Message):
    """Front end -> entry: a new request, or one to go on with after a subserver died.

    Then `authors` wrote what follows the prompt in `prompt_ids`, and `holder` (a role; -1: the entry) writes next.
    """

    rid: str
    prompt_ids: list[int]
    opening: Opening
    authors: list[int] = []
    holder: int = -1


class Abort(_Message):
    """Front end -> entry: end this request now, for the reason given."""

    rid: str
    reason: FinishReason


class Handoff(_Message):
    """Holder -> next holder: a PeerReq (interface.py) with what the runtime adds to it.

    `authors[i]` wrote token_ids[i] (-1: prompt). `known[r]` ids are known to be held by role r. `counts` travel
    with the request: handoffs and discarded proposals so far.
    """

    rid: str
    role: int  # the receiver's
    token_ids: list[int]
    authors: list[int]
    loc: int
    known: list[int]
    counts: tuple[int, int]
    extra: Any = None
    opening: Opening | None = None
    drafts: list[int] = []  # behind the accepted ids, for the receiver to verify
    signal: float | None = None  # by which the position that the receiver writes was routed, for requests that ask


class Resend(_Message):
    """Receiver of a handoff -> its sender: I hold `have` ids only; send from there, with an opening."""

    rid: str
    role: int  # the asker's
    have: int


class Admitted(_Message):
    """Entry -> peers: one more active request of this algorithm."""

    rid: str
    algorithm: int


class Ended(_Message):
    """Holder -> entry, then entry -> peers and front end: this request is over."""

    rid: str
    reason: FinishReason
    num_output: int
    counts: tuple[int, int]


class Launched(_Message):
    """Subserver -> peers, under the hold rule: a batch of that many requests runs here from `at` on, about that long.

    `at` is perf_counter's, which on Linux is one clock for all processes of a host; a cluster's are on one host.
    """

    batch: int
    at: float
    duration_s: float


class Landed(_Message):
    """Subserver -> peers: the batch last announced is done; who left for the receiver is in the same envelope."""


class Figures(_Message):
    """Subserver -> peers, now and then: what it measures of its model in service.

    P[j], C[j]: share of the routed rows that went to subserver j, and mean tokens committed then. A step of b requests
    takes base_ms + b * slope_ms. `steps`: how many have been measured.
    """

    steps: int
    P: list[float]
    C: list[float]
    base_ms: float
    slope_ms: float

    def step_ms(self, batch: float) -> float:
        return self.base_ms + batch * self.slope_ms


class Plan(_Message):
    """Author -> peers: thresholds B of all subservers, for `active` requests and these figures (None: it was idle).

    The greatest (version, author) is in force everywhere.
    """

    version: int
    author: int
    active: int
    B: tuple[int, ...]
    figures: tuple[Figures | None, ...]


class Round(_Message):
    """Subserver -> peers, where steps are synchronous: it begins round `number`, has nothing to run, or has ended."""

    number: int
    stage: Literal["begin", "pass", "end"]


class Baton(_Message):
    """Holder -> next holder, where one model runs at a time. `waiting`: requests known to wait at each subserver."""

    waiting: list[int]


class Tokens(_Message):
    """Committer -> front end: accepted tokens from output position `position` on, all written by `role`.

    For requests that ask: `logprobs`, one a token, and `signal`, by which the first of them was routed.
    """

    rid: str
    position: int
    token_ids: list[int]
    role: int
    logprobs: list[Logprobs] | None = None
    signal: float | None = None


class Ready(_Message):
    """Subserver -> front end: loaded, self-tested, at your service."""

    info: dict[str, Any]
    capacity: int


class Start(_Message):
    """Front end -> subserver, once all are ready: what they must agree on.

    `eos_token_ids`: the union over the models; `vocab_size`: ids from here on are unknown to some model.
    """

    eos_token_ids: tuple[int, ...]
    vocab_size: int


class Failed(_Message):
    """Subserver -> front end: why it ends; `bad_input` if the user's configuration is to blame."""

    error: str
    bad_input: bool


class Control(_Message):
    """Front end -> subserver: "stats", "reset_stats", "take_stats" (both), "flush_cache", "stop", or "check", which
    verifies invariants."""

    command: str


class Report(_Message):
    """Subserver -> front end: the answer to a Control."""

    command: str
    body: dict[str, Any]


Scheduling = Launched | Landed | Figures | Plan | Round | Baton
"""What launch policies tell each other."""
Message = (
    Submit | Abort | Handoff | Resend | Admitted | Ended | Tokens | Ready | Start | Failed | Control | Report
    | Scheduling
)


class Envelope(msgspec.Struct, array_like=True):
    sender: int
    epoch: int
    messages: list[Message]
