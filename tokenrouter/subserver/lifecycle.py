"""The life of a request as messages: it arrives, returns, is handed over, and ends, once, everywhere."""
from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from tokenrouter.core import FinishReason, Logprobs, Request, Status
from tokenrouter.interface import Algorithm, BaseRouter, PeerReq, RequestView
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.mailbox import Mailbox
from tokenrouter.subserver.scheduler import Scheduler

REMEMBERED_ENDS = 100_000  # late messages about a request that is over must not revive it


class Lifecycle:
    """Handles every message, and posts every message about a request.

    `models[a][r]` is the subserver of algorithm a's role r. `active` holds the requests in the system that can
    visit this model: its size is N_i of the throughput model, kept by messages alone. `counts` has it by algorithm.
    """

    def __init__(self, index: int, mailbox: Mailbox, scheduler: Scheduler, algorithms: list[Algorithm],
                 models: list[list[int]], routers: dict[int, BaseRouter],
                 control: Callable[[str], dict[str, Any]]) -> None:
        self.index, self.mailbox, self.scheduler = index, mailbox, scheduler
        self.algorithms, self.models, self.routers, self.control = algorithms, models, routers, control
        self.active: dict[str, int] = {}
        self.counts: Counter[int] = Counter()
        self.stopping = False
        self._over: OrderedDict[str, None] = OrderedDict()
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            m.Submit: self._on_submit, m.Handoff: self._on_handoff, m.Ended: self._on_ended, m.Abort: self._on_abort,
            m.Admitted: self._on_admitted, m.Resend: self._on_resend, m.Control: self._on_control,
            m.Start: lambda sender, start: None,  # a second one, meant for a predecessor that died before it came
        }

    def handle(self, sender: int, message: m.Message) -> None:
        self._handlers[type(message)](sender, message)

    # What this subserver decides.

    def commit(self, request: Request, token: int, logprobs: Logprobs | None = None) -> None:
        """Accept a token that this model wrote, and announce it: once, never retracted."""
        position = request.num_output
        request.accept([token], [request.role])
        self.mailbox.post(m.FRONT_END, m.Tokens(
            request.rid, position, [token], request.role,
            None if logprobs is None else [logprobs], request.signal), patient=position > 0)
        request.signal = None

    def hand_over(self, request: Request, target: int, peer_req: PeerReq, *, discarded: int) -> None:
        """Running -> pending here; the peer gets the suffix that it lacks."""
        handoffs, dropped = request.counts
        request.counts = (handoffs + 1, dropped + discarded)
        request.extra, request.drafts = peer_req.extra, list(peer_req.drafts)
        self._post_handoff(request, target, peer_req.loc - len(peer_req.token_ids))
        self.scheduler.depart(request)

    def end(self, request: Request, reason: FinishReason) -> None:
        """The request is over. The entry tells the world; another holder tells the entry."""
        ended = m.Ended(request.rid, reason, request.num_output, request.counts)
        if request.role == request.entry:
            self._announce_end(request.algorithm, ended)
        else:
            self.mailbox.post(self.models[request.algorithm][request.entry], ended)
        self._forget(request.rid)

    # What others tell.

    def _on_submit(self, sender: int, submit: m.Submit) -> None:
        if submit.rid in self._over or submit.rid in self.scheduler.requests:
            return
        opening = submit.opening
        role = opening.entry
        request = self._open(submit.rid, role, opening)
        request.ids, request.authors = list(submit.prompt_ids), list(submit.authors)
        request.known[role] = len(request.ids)
        self.scheduler.add(request, time.perf_counter())
        admitted = m.Admitted(submit.rid, opening.algorithm)
        for peer in self._peers(opening.algorithm):
            self.mailbox.post(peer, admitted)
        if submit.holder not in (-1, role):
            self._post_handoff(request, submit.holder, 0)
            self.scheduler.depart(request)

    def _on_handoff(self, sender: int, handoff: m.Handoff) -> None:
        if handoff.rid in self._over:
            return
        request = self.scheduler.requests.get(handoff.rid)
        new = request is None
        if request is None and handoff.opening is not None:
            request = self._open(handoff.rid, handoff.role, handoff.opening)
        base = handoff.loc - len(handoff.token_ids)
        if request is None or base > len(request.ids):
            have = len(request.ids) if request else 0
            self.mailbox.post(sender, m.Resend(handoff.rid, handoff.role, have))
            return
        if not new and (request.status is not Status.PENDING or handoff.counts[0] <= request.counts[0]):
            return  # a duplicate, or older than what is known here
        self._append(request, handoff, base)
        request.counts = handoff.counts
        now = time.perf_counter()
        if new:
            self.scheduler.add(request, now)
        else:
            self.scheduler.resume(request, now)

    def _append(self, request: Request, handoff: m.Handoff, base: int) -> None:
        """Resume is this: the ids beyond what is held are appended. The sender's word counts where they differ."""
        peer_req = PeerReq(handoff.rid, handoff.token_ids, handoff.loc, extra=handoff.extra, drafts=handoff.drafts)
        ids = self.routers[request.algorithm].receive(peer_req, RequestView(request))
        same = len(request.ids) - base
        if request.ids[base:] != ids[:same]:
            same = next((i for i, (a, b) in enumerate(zip(request.ids[base:], ids, strict=False)) if a != b), len(ids))
            self._truncate(request, base + same)
        held = request.kv_len
        request.append(ids[same:])
        if request.resident and request.kv_len < held:
            self.scheduler.engine.truncate(request.rid, request.kv_len)
        request.expect(list(handoff.drafts))
        request.signal = handoff.signal
        request.authors.extend(author for author in handoff.authors[same:] if author >= 0)
        request.known = [max(a, b) for a, b in zip(request.known, handoff.known, strict=True)]
        request.known[request.role] = len(request.ids)

    def _truncate(self, request: Request, length: int) -> None:
        del request.ids[length:]
        request.drafts = []
        del request.authors[max(0, length - request.prompt_len):]
        if request.resident and request.kv_len > length:
            self.scheduler.engine.truncate(request.rid, length)
        request.kv_len = min(request.kv_len, length)

    def _on_resend(self, sender: int, resend: m.Resend) -> None:
        request = self.scheduler.requests.get(resend.rid)
        if request is not None and request.status is Status.PENDING:
            request.known[resend.role] = 0  # so that the opening rides along
            self._post_handoff(request, resend.role, resend.have)

    def _on_admitted(self, sender: int, admitted: m.Admitted) -> None:
        if admitted.rid not in self._over:
            self._count(admitted.rid, admitted.algorithm)

    def _on_ended(self, sender: int, ended: m.Ended) -> None:
        request = self.scheduler.requests.get(ended.rid)
        if request is not None and request.role == request.entry and ended.rid not in self._over:
            self._announce_end(request.algorithm, ended)
        self._forget(ended.rid)

    def _on_abort(self, sender: int, abort: m.Abort) -> None:
        request = self.scheduler.requests.get(abort.rid)
        if request is not None:
            self.end(request, abort.reason)
        else:  # it is over here, and the front end may not have heard of it
            self.mailbox.post(m.FRONT_END, m.Ended(abort.rid, abort.reason, 0, (0, 0)))

    def _on_control(self, sender: int, control: m.Control) -> None:
        if control.command == "stop":
            self.stopping = True
        else:
            self.mailbox.post(m.FRONT_END, m.Report(control.command, self.control(control.command)))

    # Shared by the above.

    def _count(self, rid: str, algorithm: int) -> None:
        if rid not in self.active:
            self.active[rid] = algorithm
            self.counts[algorithm] += 1

    def _open(self, rid: str, role: int, opening: m.Opening) -> Request:
        self._count(rid, opening.algorithm)
        roles = len(self.algorithms[opening.algorithm].roles)
        return Request(rid, opening.algorithm, role, opening.entry, opening.sampling, opening.params,
                       ids=[], prompt_len=opening.prompt_len, known=[0] * roles)

    def _post_handoff(self, request: Request, target: int, base: int) -> None:
        opening = None
        if request.known[target] == 0:
            opening = m.Opening(request.algorithm, request.entry, request.prompt_len, request.sampling, request.params)
        start = base - request.prompt_len
        authors = [-1] * max(0, -start) + request.authors[max(0, start):]
        request.known[target] = len(request.ids)
        self.mailbox.post(self.models[request.algorithm][target], m.Handoff(
            request.rid, target, request.ids[base:], authors, len(request.ids),
            list(request.known), request.counts, request.extra, opening, request.drafts, request.signal))

    def _announce_end(self, algorithm: int, ended: m.Ended) -> None:
        for peer in self._peers(algorithm):
            self.mailbox.post(peer, ended)
        self.mailbox.post(m.FRONT_END, ended)

    def _peers(self, algorithm: int) -> list[int]:
        return [model for model in self.models[algorithm] if model != self.index]

    def _forget(self, rid: str) -> None:
        if (request := self.scheduler.requests.get(rid)) is not None:
            self.scheduler.remove(request)
        if (algorithm := self.active.pop(rid, None)) is not None:
            self.counts[algorithm] -= 1
        self._over[rid] = None
        while len(self._over) > REMEMBERED_ENDS:
            self._over.popitem(last=False)
