"""The client side of the subservers: requests go in, an ordered log of committed tokens comes out."""
from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import FinishReason, InputError, Logprobs, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.interface import EntryContext
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.mailbox import Mailbox

log = logging.getLogger("tokenrouter.server")
CONTROL_TIMEOUT_S = 30.0
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Accepted tokens from output position `position` on, in order for each request; `time` is perf_counter's."""

    rid: str
    position: int
    token_ids: list[int]
    role: int
    time: float
    logprobs: list[Logprobs] | None = None  # one a token, for requests that ask
    signal: float | None = None  # by which the first of them was routed, for requests that ask


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The last event of a request: all its tokens have been given out before."""

    rid: str
    reason: FinishReason
    num_output: int
    handoffs: int
    discarded: int
    error: str | None
    time: float


Event = TokenEvent | EndEvent


@dataclass(slots=True)
class _Open:
    """A request in the system. Tokens come from several subservers, so they can overtake each other.

    `wire` is what subservers call it: another name after each restart, so that nothing late is taken for new.
    `token_ids` and `authors` are the log of what was committed.
    """

    rid: str
    wire: str
    entry: int  # subserver index
    prompt_ids: list[int]
    opening: m.Opening
    token_ids: list[int] = field(default_factory=list)
    authors: list[int] = field(default_factory=list)
    restarts: int = 0
    redraw: bool = True  # the last committed token, when it is sent anew
    aborted: bool = False
    early: dict[int, m.Tokens] = field(default_factory=dict)
    ended: m.Ended | None = None

    @property
    def position(self) -> int:
        return len(self.token_ids)


class Frontend:
    """Not thread-safe: one caller polls. `models[i]` describes subserver i, once wait_ready has returned.

    When a subserver is restarted, its requests are sent anew, with what was committed of them. The last committed
    token is left out: its author draws it again, to the same effect, and so comes to know who goes on. None is left out
    where that gives another token, as a near tie may in another batch, nor where models draft, as how a token was drawn
    depends on the drafts before it: the entry goes on behind the last. `watch` is called at each poll and restarts
    those that have died; `spare` says whether one that tells of its failure will be.
    """

    def __init__(self, mailbox: Mailbox, spec: ClusterSpec, watch: Callable[[], None],
                 spare: Callable[[int], bool] = lambda index: False) -> None:
        self.models: list[ModelInfo] = []
        self.capacities: list[int] = []
        self.loading = [model.name for model in spec.models]  # not ready yet
        self._mailbox, self.spec, self._watch, self._spare = mailbox, spec, watch, spare
        self.restarts = [0] * len(spec.models)  # of each subserver
        self.algorithms = [algorithm.build() for algorithm in spec.algorithms]
        self._index = {algorithm.name: i for i, algorithm in enumerate(self.algorithms)}
        self._open: dict[str, _Open] = {}
        self._wires: dict[str, _Open] = {}
        self.down: set[int] = set()  # subservers that are being started anew
        self._names = itertools.count()
        self._drafting: dict[int, bool] = {}  # of algorithms that had to begin again
        self._events: list[Event] = []
        self._reports: dict[tuple[int, str], dict[str, Any]] = {}

    @property
    def context_length(self) -> int:
        """The longest prompt plus output that every model takes and every KV pool holds."""
        return min(*(info.context_length for info in self.models), *self.capacities)

    @property
    def num_open(self) -> int:
        return len(self._open)

    def fileno(self) -> int:
        """Readable when there may be something to poll for: for event loops, which then poll(0) until it is empty."""
        return self._mailbox.fileno()

    def wait_ready(self, timeout_s: float) -> None:
        """Until every model is loaded; then all are told what they must agree on."""
        ready: dict[int, m.Ready] = {}
        deadline = time.monotonic() + timeout_s
        while len(ready) < len(self.spec.models):
            for sender, message in self._mailbox.receive(0.1):
                if isinstance(message, m.Ready):
                    ready[sender] = message
                    self.loading = [model.name for i, model in enumerate(self.spec.models) if i not in ready]
                elif isinstance(message, m.Failed):
                    self._raise(sender, message)
            self._watch()
            if time.monotonic() > deadline:
                missing = sorted(set(range(len(self.spec.models))) - set(ready))
                raise RuntimeError(f"subservers {missing} were not ready after {timeout_s:g} s")
        self.models = [msgspec.convert(ready[i].info, ModelInfo) for i in sorted(ready)]
        self.capacities = [ready[i].capacity for i in sorted(ready)]
        for index in ready:
            self._mailbox.post(index, self._agreed())
        self._mailbox.flush()

    def _agreed(self) -> m.Start:
        eos = tuple(sorted({e for info in self.models for e in info.eos_token_ids}))
        return m.Start(eos, min(info.vocab_size for info in self.models))

    def lost(self, index: int) -> None:
        """Subserver `index` has died and is being started anew: what it had a part in begins again when it is there."""
        self.down.add(index)
        self.restarts[index] += 1
        for request in list(self._open.values()):
            if index in self._bound(request):
                self._forget(request)
        self._mailbox.flush()

    def _forget(self, request: _Open) -> None:
        """Its subservers forget it; unless it is aborted, it can be sent anew, by another name."""
        over = m.Ended(request.wire, FinishReason.ABORT, 0, (0, 0))
        for peer in self._bound(request):
            self._mailbox.post(peer, over)
        if request.aborted:
            self._drop(request)
        else:
            self._wires.pop(request.wire, None)
            request.restarts += 1
            request.wire = f"{request.rid}.{request.restarts}"
            self._wires[request.wire] = request
            request.early.clear()
            request.ended = None  # what it counted may be lost

    def _drop(self, request: _Open) -> None:
        """Aborted, and none of its subservers would answer."""
        now = time.perf_counter()
        self._close(request, m.Ended(request.wire, FinishReason.ABORT, request.position, (0, 0)), now)

    def _bound(self, request: _Open) -> list[int]:
        return self.spec.algorithms[request.opening.algorithm].models

    def _back(self, index: int) -> None:
        self._mailbox.post(index, self._agreed())
        self.down.discard(index)
        for request in list(self._open.values()):
            if index in self._bound(request):
                self._send(request)
        self._mailbox.flush()

    def _send(self, request: _Open) -> None:
        """To its entry, unless one of its subservers is missing: then it waits for that one."""
        if not self.down.isdisjoint(self._bound(request)):
            return
        kept, holder, opening = request.position, -1, request.opening
        if kept and request.redraw and not self._drafts(opening.algorithm):
            kept -= 1
            holder = request.authors[kept]
        elif kept:
            reason = opening.sampling.finish_reason(request.token_ids[-1], kept, self._agreed().eos_token_ids)
            if reason is not None:
                self._close(request, m.Ended(request.wire, reason, kept, (0, 0)), time.perf_counter())
                return
        self._mailbox.post(request.entry, m.Submit(
            request.wire, request.prompt_ids + request.token_ids[:kept], opening, request.authors[:kept], holder))

    def _drafts(self, algorithm: int) -> bool:
        if algorithm not in self._drafting:  # a router may have weights to read
            chosen = self.algorithms[algorithm]
            self._drafting[algorithm] = any(chosen.router(role).drafts for role in chosen.roles)
        return self._drafting[algorithm]

    def submit(self, prompt_ids: Sequence[int], sampling: SamplingParams, algorithm: str,
               params: Mapping[str, Any] | None = None) -> str:
        """Send a request to its entry; returns its id. Raises InputError for what can never be served."""
        sampling.check()
        if algorithm not in self._index:
            raise InputError(f"algorithm={algorithm!r}: allowed is one of {sorted(self._index)}")
        if not prompt_ids:
            raise InputError("prompt=[]: allowed is one token or more")
        vocab = min(info.vocab_size for info in self.models)
        if not all(0 <= i < vocab for i in prompt_ids):
            raise InputError(f"prompt: token ids {min(prompt_ids)} to {max(prompt_ids)}: allowed is 0 to {vocab - 1}")
        if len(prompt_ids) + sampling.max_tokens > self.context_length:
            raise InputError(f"prompt of {len(prompt_ids)} tokens with max_tokens={sampling.max_tokens}: "
                             f"allowed is a sum of at most {self.context_length}, the context of this set of models")
        number = self._index[algorithm]
        chosen = self.algorithms[number]
        parsed = chosen.parse(params or {})
        entry = chosen.entry_role(EntryContext(prompt_ids, sampling.seed, parsed))
        subserver = self.spec.algorithms[number].models[entry]
        rid = f"r{next(self._names)}"
        opening = m.Opening(number, entry, len(prompt_ids), sampling, parsed)
        self._open[rid] = self._wires[rid] = request = _Open(rid, rid, subserver, list(prompt_ids), opening)
        self._send(request)
        self._mailbox.flush()
        return rid

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request early; its EndEvent follows. Nothing happens if it is over already."""
        if (request := self._open.get(rid)) is not None:
            request.aborted = True
            if self.down.isdisjoint(self._bound(request)):
                self._mailbox.post(request.entry, m.Abort(request.wire, reason))
                self._mailbox.flush()
            else:
                self._drop(request)

    def poll(self, timeout_s: float) -> list[Event]:
        """All that has happened; waits up to `timeout_s` if nothing has. Raises what `watch` raises."""
        self._pump(0.0 if self._events else timeout_s)
        events, self._events = self._events, []
        return events

    def _pump(self, timeout_s: float) -> None:
        now = 0.0
        for sender, message in self._mailbox.receive(timeout_s):
            now = now or time.perf_counter()  # once a burst, when it came in
            if isinstance(message, m.Tokens):
                self._on_tokens(message, now)
            elif isinstance(message, m.Ended):
                if (request := self._wires.get(message.rid)) is not None:
                    request.ended = message
                    self._close_if_complete(request, now)
            elif isinstance(message, m.Report):
                self._reports[sender, message.command] = message.body
            elif isinstance(message, m.Ready):
                self._back(sender)
            elif isinstance(message, m.Failed) and not self._spare(sender):
                self._raise(sender, message)
        self._watch()

    def _on_tokens(self, tokens: m.Tokens, now: float) -> None:
        request = self._wires.get(tokens.rid)
        if request is None:
            return
        if tokens.position < request.position:  # drawn again after a restart
            logged = request.token_ids[tokens.position : tokens.position + len(tokens.token_ids)]
            if tokens.token_ids[: len(logged)] != logged:
                log.warning("token %d of %s came out differently after a restart", tokens.position, request.rid)
                request.redraw = False
                self._forget(request)
                if not request.aborted:
                    self._send(request)
                self._mailbox.flush()
            return
        request.early[tokens.position] = tokens
        while (due := request.early.pop(request.position, None)) is not None:
            position = request.position
            self._events.append(TokenEvent(request.rid, position, due.token_ids, due.role, now, due.logprobs,
                                           due.signal))
            request.token_ids += due.token_ids
            request.authors += [due.role] * len(due.token_ids)
        self._close_if_complete(request, now)

    def _close_if_complete(self, request: _Open, now: float) -> None:
        """An end can overtake the last tokens. An abort does not wait for those that were cut off."""
        ended = request.ended
        if ended is None or (ended.reason is not FinishReason.ABORT and request.position < ended.num_output):
            return
        self._close(request, ended, now)

    def _close(self, request: _Open, ended: m.Ended, now: float) -> None:
        del self._open[request.rid]
        self._wires.pop(request.wire, None)
        handoffs, discarded = ended.counts
        self._events.append(EndEvent(
            request.rid, ended.reason, request.position, handoffs, discarded, None, now))

    def _raise(self, index: int, failed: m.Failed) -> None:
        name = self.spec.models[index].name
        if failed.bad_input:
            raise InputError(failed.error.removeprefix("InputError: "))
        raise RuntimeError(f"subserver {index} ({name}) failed: {failed.error}")

    # Administration.

    def stats(self) -> list[dict[str, Any]]:
        """One report a subserver, since the last reset (subserver/stats.py)."""
        return self._ask("stats")

    def glance(self) -> list[dict[str, Any]] | None:
        """Each subserver's recent batch size and its threshold B, as they were when this was last called: it waits for
        nobody. None if not all have answered."""
        last = self.reports("glance")
        self.request_reports("glance")
        return last

    def reset_stats(self) -> None:
        self._ask("reset_stats")

    def flush_cache(self) -> None:
        self._ask("flush_cache")

    def check(self) -> None:
        """The invariants of a system at rest: every page owned, counts equal, nothing left of what is over.

        Raises AssertionError. The last messages between subservers get SETTLE_S to arrive.
        """
        deadline = time.monotonic() + SETTLE_S
        expected = sorted(self._wires)
        while any(report["active"] != expected for report in self._ask("check")):
            assert time.monotonic() < deadline, f"active counts still differ from the front end's {expected}"
        for index, report in enumerate(self._ask("check")):
            assert set(report["requests"]) <= set(expected), f"subserver {index} holds {report['requests']}"

    def request_reports(self, command: str) -> None:
        """Ask every subserver; `reports` has the answers when they have come."""
        for index in range(len(self.spec.models)):
            self._reports.pop((index, command), None)
            self._mailbox.post(index, m.Control(command))
        self._mailbox.flush()

    def reports(self, command: str) -> list[dict[str, Any]] | None:
        """One a subserver; None until all have answered."""
        keys = [(index, command) for index in range(len(self.spec.models))]
        return [self._reports[key] for key in keys] if all(key in self._reports for key in keys) else None

    def _ask(self, command: str) -> list[dict[str, Any]]:
        self.request_reports(command)
        deadline = time.monotonic() + CONTROL_TIMEOUT_S
        while (reports := self.reports(command)) is None:
            self._pump(0.05)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer to {command!r} after {CONTROL_TIMEOUT_S:g} s")
        return reports
