"""What becomes of a proposal: sampled, routed, then accepted here, or handed over with or without it.

The order of tests is fixed (docs: the truth): route first, then end of sequence, stop ids, length. So a discarded
end of sequence, or a discarded last token, does not end a request.
"""
from __future__ import annotations

import torch

from tokenrouter.core import FinishReason, Request
from tokenrouter.engine.base import EngineOutput
from tokenrouter.interface import Algorithm, BaseRouter, LogitsOutput, RequestView, StepResult
from tokenrouter.sampling import draw_of, logprobs, sample
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
        """One proposal for each request, from its row of `output`, and what its router makes of it.

        Returns for each the subserver that writes its next token, and the tokens committed.
        """
        draws = [draw_of(r, self.eos_token_ids) for r in requests]
        tokens = sample(output.logits, draws, self.vocab_size)
        proposals: list[int] = tokens.tolist()
        for request, row, token in zip(requests, output.logits, proposals, strict=True):
            if request.sampling.logprobs >= 0:
                request.told = logprobs(row[: self.vocab_size], token, request.sampling.logprobs)
        views = [RequestView(r, token) for r, token in zip(requests, proposals, strict=True)]
        groups: dict[int, list[int]] = {}
        for row, request in enumerate(requests):
            groups.setdefault(request.algorithm, []).append(row)
        moves = []
        for algorithm, rows in groups.items():
            destinations = self._route(algorithm, rows, tokens, output, views)
            for row, destination in zip(rows, destinations, strict=True):
                if destination == 0:
                    moves.append(self._stay(requests[row], proposals[row], stats))
                else:
                    moves.append(self._leave(requests[row], proposals[row], views[row], destination, stats))
        return moves

    def _route(self, algorithm: int, rows: list[int], tokens: torch.Tensor, output: EngineOutput,
               views: list[RequestView]) -> list[int]:
        """The router sees the rows of its own algorithm's requests, and no others."""
        router = self.routers[algorithm]
        logits, hidden = output.logits, output.hidden
        if len(rows) < len(views):
            index = torch.tensor(rows, device=tokens.device)
            tokens, logits, hidden = tokens[index], logits[index], hidden[index]
        needed = hidden if "hidden_states" in router.needs else None
        result = StepResult(tokens, LogitsOutput(logits, needed), [views[row] for row in rows])
        destinations = router.route(result).tolist()
        if len(destinations) != len(rows):
            raise ValueError(f"{type(router).__name__}.route answered {len(destinations)} rows for {len(rows)}")
        return [int(d) for d in destinations]

    def _stay(self, request: Request, token: int, stats: Stats) -> tuple[int, int]:
        algorithm = self.algorithms[request.algorithm]
        stats.transition(algorithm.name, len(algorithm.roles), request.role, 1)
        self.lifecycle.commit(request, token)
        if reason := self._finish_reason(request, token):
            self.lifecycle.end(request, reason)
        return self.lifecycle.index, 1

    def _leave(self, request: Request, token: int, view: RequestView, destination: int,
               stats: Stats) -> tuple[int, int]:
        algorithm = self.algorithms[request.algorithm]
        target = algorithm.destination_role(request.role, destination)
        view.destination = destination
        message = self.routers[request.algorithm].send(view)
        committed = message.loc - len(request.ids)
        if committed not in (0, 1):
            raise ValueError(f"{algorithm.name}: send answered loc={message.loc} with {len(request.ids)} ids accepted: "
                             "allowed is that (proposal discarded) or one more (kept)")
        stats.transition(algorithm.name, len(algorithm.roles), target, committed)
        move = self.lifecycle.models[request.algorithm][target], committed
        if committed:
            self.lifecycle.commit(request, token)
            if reason := self._finish_reason(request, token):
                self.lifecycle.end(request, reason)
                return move
        self.lifecycle.hand_over(request, target, message, discarded=1 - committed)
        return move

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        sampling = request.sampling
        if token in sampling.stop_token_ids or (token in self.eos_token_ids and not sampling.ignore_eos):
            return FinishReason.STOP
        if request.num_output >= sampling.max_tokens:
            return FinishReason.LENGTH
        return None
