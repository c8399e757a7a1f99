"""What becomes of a proposal: sampled, routed, then accepted here, or handed over with or without it.

The order of tests is fixed (docs: the truth): route first, then end of sequence, stop ids, length. So a discarded
end of sequence, or a discarded last token, does not end a request.
"""
from __future__ import annotations

import reprlib
from itertools import accumulate
from math import isfinite
from typing import NamedTuple

import torch

from tokenrouter.core import Logprobs, Request
from tokenrouter.engine.base import EngineOutput
from tokenrouter.interface import Algorithm, BaseRouter, LogitsOutput, PeerReq, RequestView, StepResult
from tokenrouter.proposals import Proposals, propose
from tokenrouter.sampling import logprobs
from tokenrouter.subserver.lifecycle import Lifecycle
from tokenrouter.subserver.stats import Stats


class Decided(NamedTuple):
    """What becomes of each request of a step, perhaps still to be read from the device.

    `starts[i]`: the first of request i's rows in `logits`. `routed`: for each algorithm the places of its requests,
    their destinations, and what they were routed by if one of them wants to be told.
    """

    requests: list[Request]
    logits: torch.Tensor
    starts: list[int]
    proposals: Proposals
    routed: list[tuple[list[int], torch.Tensor, torch.Tensor | None]]


class Routing:
    """The routers of one subserver, one for each algorithm that has a role here."""

    def __init__(self, algorithms: list[Algorithm], routers: dict[int, BaseRouter], lifecycle: Lifecycle, *,
                 eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self.algorithms, self.routers, self.lifecycle = algorithms, routers, lifecycle
        self.eos_token_ids, self.vocab_size = eos_token_ids, vocab_size

    def decide(self, requests: list[Request], output: EngineOutput) -> Decided:
        """One proposal for each request, from its rows of `output`, and what its router makes of it.

        Nothing here waits for the device unless a router does.
        """
        starts = [0, *accumulate(request.num_logits for request in requests)]
        proposals = propose(requests, [self.routers[request.algorithm] for request in requests], output.logits,
                            self.vocab_size, self.eos_token_ids)
        groups: dict[int, list[int]] = {}
        for row, request in enumerate(requests):
            groups.setdefault(request.algorithm, []).append(row)
        routed = [self._route(algorithm, rows, proposals, output) for algorithm, rows in groups.items()]
        return Decided(requests, output.logits, starts, proposals, routed)

    def settle(self, decided: Decided, stats: Stats) -> list[tuple[int, int]]:
        """Do what was decided. Returns for each request the subserver that writes its next token, and the tokens
        committed."""
        requests, logits, starts, proposals, routed = decided
        for request, view, rejected in zip(requests, proposals.views, proposals.rejected, strict=True):
            if rejected:
                handoffs, discarded = request.counts
                request.counts = (handoffs, discarded + rejected)
            # Behind the ids there is KV of drafts, of which those that were accepted stay.
            self.lifecycle.scheduler.keep(request, request.length + len(view.proposal) - 1)
        moves = []
        for rows, destinations, signal in routed:
            signals = [None] * len(rows) if signal is None else signal.tolist()
            for row, destination, number in zip(rows, destinations.tolist(), signals, strict=True):
                request, view = requests[row], proposals.views[row]
                if number is not None and request.sampling.signals and isfinite(number):
                    request.signal = number
                told: list[Logprobs | None] = [None] * len(view.proposal)
                if request.sampling.logprobs >= 0:
                    told = self._told(request, view, logits[starts[row] :])
                moves.append(self._settle(request, view, int(destination), told, stats))
        return moves

    def _route(self, algorithm: int, rows: list[int], proposals: Proposals,
               output: EngineOutput) -> tuple[list[int], torch.Tensor, torch.Tensor | None]:
        """The router sees the rows of its own algorithm's requests, and no others."""
        router = self.routers[algorithm]
        tokens, logits, hidden = proposals.tokens, output.logits, output.hidden
        if len(rows) < len(logits):
            last = torch.tensor([proposals.rows[row] for row in rows], device=tokens.device)
            tokens, logits, hidden = tokens[rows], logits[last], hidden[last]
        needed = hidden if "hidden_states" in router.needs else None
        result = StepResult(tokens, LogitsOutput(logits, needed), [proposals.views[row] for row in rows],
                            self.vocab_size)
        destinations = router.route(result)
        if (not isinstance(destinations, torch.Tensor) or destinations.shape != (len(rows),)
                or destinations.is_floating_point()):
            raise ValueError(f"{type(router).__name__}.route answered {_shown(destinations)}: allowed is a tensor of "
                             f"{len(rows)} whole numbers, one for each request")
        wanted = result.signal is not None and any(view.sampling_params.signals for view in result.requests)
        return rows, destinations, result.signal if wanted else None

    def _told(self, request: Request, view: RequestView, logits: torch.Tensor) -> list[Logprobs | None]:
        """What the request wants to be told of each proposed token; `logits`: its rows, and others behind them."""
        return [logprobs(row[: self.vocab_size], token, request.sampling.logprobs)
                for token, row in zip(view.proposal, logits, strict=False)]

    def _settle(self, request: Request, view: RequestView, destination: int, told: list[Logprobs | None],
                stats: Stats) -> tuple[int, int]:
        """Accept, draft, discard or hand over a proposal; the subserver that is next, and the tokens committed."""
        algorithm, router = self.algorithms[request.algorithm], self.routers[request.algorithm]
        proposal = view.proposal
        target, message, committed = request.role, None, len(proposal)
        if destination:
            target = algorithm.destination_role(request.role, destination)
            view.destination = destination
            message = router.send(view)
            if not isinstance(message, PeerReq):
                raise ValueError(f"{type(router).__name__}.send answered {_shown(message)}: allowed is a PeerReq")
            committed = message.loc - len(request.ids)
            if not 0 <= committed <= len(proposal) or (message.drafts and committed):
                raise ValueError(f"{type(router).__name__}.send answered loc={message.loc} with {len(request.ids)} ids "
                                 f"accepted: allowed is that, or without drafts up to {len(proposal)} more")
        elif router.drafts:
            committed = 0
            if request.num_output + len(request.drafts) + 1 >= request.sampling.max_tokens:
                raise ValueError(f"{type(router).__name__}.route answered 0 where max_tokens leaves no room for more "
                                 "drafts: allowed is a peer")
            request.drafts.extend(proposal)
        stats.transition(algorithm.name, len(algorithm.roles), target, committed)
        move = self.lifecycle.models[request.algorithm][target], committed
        for token, known in zip(proposal[:committed], told, strict=False):
            self.lifecycle.commit(request, token, known)
            if reason := request.sampling.finish_reason(token, request.num_output, self.eos_token_ids):
                self.lifecycle.end(request, reason)
                return move
        if message is not None:
            dropped = 0 if message.drafts else len(proposal) - committed
            self.lifecycle.scheduler.keep(request, request.length)
            self.lifecycle.hand_over(request, target, message, discarded=dropped)
        return move


def _shown(answer: object) -> str:
    """What a router answered in place of what it should, on one line."""
    if isinstance(answer, torch.Tensor):
        return f"a {answer.dtype} tensor of shape {list(answer.shape)}"
    return reprlib.repr(answer)
