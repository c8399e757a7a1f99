"""What becomes of a proposal: sampled, routed, then accepted here, or handed over with or without it.

The order of tests is fixed (docs: the truth): route first, then end of sequence, stop ids, length. So a discarded
end of sequence, or a discarded last token, does not end a request.
"""
from __future__ import annotations

from itertools import accumulate

import torch

from tokenrouter.core import FinishReason, Logprobs, Request
from tokenrouter.engine.base import EngineOutput
from tokenrouter.interface import Algorithm, BaseRouter, LogitsOutput, RequestView, StepResult
from tokenrouter.proposals import Proposals, propose
from tokenrouter.sampling import logprobs
from tokenrouter.subserver.lifecycle import Lifecycle
from tokenrouter.subserver.stats import Stats


class Routing:
    """The routers of one subserver, one for each algorithm that has a role here."""

    def __init__(self, algorithms: list[Algorithm], routers: dict[int, BaseRouter], lifecycle: Lifecycle, *,
                 eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self.algorithms, self.routers, self.lifecycle = algorithms, routers, lifecycle
        self.eos_token_ids, self.vocab_size = eos_token_ids, vocab_size

    @torch.inference_mode()
    def settle(self, requests: list[Request], output: EngineOutput, stats: Stats) -> list[tuple[int, int]]:
        """One proposal for each request, from its rows of `output`, and what its router makes of it.

        Returns for each the subserver that writes its next token, and the tokens committed.
        """
        starts = [0, *accumulate(request.num_logits for request in requests)]
        proposals = propose(requests, [self.routers[request.algorithm] for request in requests], output.logits,
                            self.vocab_size, self.eos_token_ids)
        for request, view, rejected in zip(requests, proposals.views, proposals.rejected, strict=True):
            handoffs, discarded = request.counts
            request.counts = (handoffs, discarded + rejected)
            # Behind the ids there is KV of drafts, of which those that were accepted stay.
            self.lifecycle.scheduler.keep(request, request.length + len(view.proposal) - 1)
        groups: dict[int, list[int]] = {}
        for row, request in enumerate(requests):
            groups.setdefault(request.algorithm, []).append(row)
        moves = []
        for algorithm, rows in groups.items():
            destinations = self._route(algorithm, rows, proposals, output)
            for row, destination in zip(rows, destinations, strict=True):
                told = self._told(requests[row], proposals.views[row], output.logits[starts[row] :])
                moves.append(self._settle(requests[row], proposals.views[row], destination, told, stats))
        return moves

    def _route(self, algorithm: int, rows: list[int], proposals: Proposals, output: EngineOutput) -> list[int]:
        """The router sees the rows of its own algorithm's requests, and no others."""
        router = self.routers[algorithm]
        tokens, logits, hidden = proposals.tokens, output.logits, output.hidden
        if len(rows) < len(logits):
            index = torch.tensor(rows, device=tokens.device)
            tokens, index = tokens[index], proposals.rows[index]
            logits, hidden = logits[index], hidden[index]
        needed = hidden if "hidden_states" in router.needs else None
        result = StepResult(tokens, LogitsOutput(logits, needed), [proposals.views[row] for row in rows],
                            self.vocab_size)
        destinations = router.route(result).tolist()
        if len(destinations) != len(rows):
            raise ValueError(f"{type(router).__name__}.route answered {len(destinations)} rows for {len(rows)}")
        return [int(d) for d in destinations]

    def _told(self, request: Request, view: RequestView, logits: torch.Tensor) -> list[Logprobs | None]:
        """What the request wants to be told of each proposed token; `logits`: its rows, and others behind them."""
        count = request.sampling.logprobs
        return [logprobs(row[: self.vocab_size], token, count) if count >= 0 else None
                for token, row in zip(view.proposal, logits, strict=False)]

    def _settle(self, request: Request, view: RequestView, destination: int, told: list[Logprobs | None],
                stats: Stats) -> tuple[int, int]:
        """Accept, draft, discard or hand over a proposal; the subserver that is next, and the tokens committed."""
        algorithm, router = self.algorithms[request.algorithm], self.routers[request.algorithm]
        target, message, committed = request.role, None, len(view.proposal)
        if destination:
            target = algorithm.destination_role(request.role, destination)
            view.destination = destination
            message = router.send(view)
            committed = message.loc - len(request.ids)
            if not 0 <= committed <= len(view.proposal) or (message.drafts and committed):
                raise ValueError(f"{algorithm.name}: send answered loc={message.loc} with {len(request.ids)} ids "
                                 f"accepted: allowed is that, or without drafts up to {len(view.proposal)} more")
        elif router.drafts:
            committed = 0
            if request.num_output + len(request.drafts) + 1 >= request.sampling.max_tokens:
                raise ValueError(f"{algorithm.name}: more is drafted than max_tokens leaves: route must send it away")
            request.drafts.extend(view.proposal)
        stats.transition(algorithm.name, len(algorithm.roles), target, committed)
        move = self.lifecycle.models[request.algorithm][target], committed
        for token, known in zip(view.proposal[:committed], told, strict=False):
            request.told = known
            self.lifecycle.commit(request, token)
            if reason := self._finish_reason(request, token):
                self.lifecycle.end(request, reason)
                return move
        if message is not None:
            dropped = 0 if message.drafts else len(view.proposal) - committed
            self.lifecycle.scheduler.keep(request, request.length)
            self.lifecycle.hand_over(request, target, message, discarded=dropped)
        return move

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        sampling = request.sampling
        if token in sampling.stop_token_ids or (token in self.eos_token_ids and not sampling.ignore_eos):
            return FinishReason.STOP
        if request.num_output >= sampling.max_tokens:
            return FinishReason.LENGTH
        return None
