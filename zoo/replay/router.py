"""Replaying routing decisions: a request goes from model to model with given probabilities, whatever is written.

This sets a system's speed apart from a routing policy. Every decision is drawn by the keyed generator from the
request's seed and the number of decisions made on it before, so the same requests take the same ways on any engine,
in any batch and at any speed.
"""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from tokenrouter.core import InputError
from tokenrouter.interface import BaseRouter, PeerReq, RequestView, StepResult
from tokenrouter.sampling import Purpose, uniform
from tokenrouter.throughput.spec import Spec
from zoo.replay.profile import load_profile

_KEPT = "kept"  # whether the proposal goes along with the request that route sends away
_STATE = "replay"  # (proposals discarded so far, number of the first decision here since it arrived)


class Leaving:
    """When requests leave one model, and where to. `draw` is a number in [0, 1)."""

    def __init__(self, role: int, row: Sequence[float], run_lengths: Sequence[float] | None) -> None:
        self._targets = [j for j in range(len(row)) if j != role]
        self._bounds = list(accumulate(row[j] for j in self._targets))
        self._role, self._total = role, self._bounds[-1] if self._bounds else 0.0
        self._rates = [1 - row[role]]
        if run_lengths is not None:  # the share of runs of at least s steps that end with the s-th
            left = list(accumulate(reversed(run_lengths)))[::-1]
            self._rates = [weight / rest if rest else 1.0 for weight, rest in zip(run_lengths, left, strict=True)]

    @property
    def stays(self) -> bool:
        """Whether a request ever does."""
        return min(self._rates) < 1

    def target(self, draw: float, step: int) -> int:
        """The role that writes next, after the `step`-th step (from 1) of a run here."""
        rate = self._rates[min(step, len(self._rates)) - 1]
        if draw >= rate:
            return self._role
        # What is left of the draw says where to; rounding must not point beyond the last bound.
        place = bisect_right(self._bounds, draw / rate * self._total)
        return self._targets[min(place, len(self._targets) - 1)]


class Replay(BaseRouter):
    """Routes by row P[i] of its role i, and keeps the proposal with probability C[i][j] when it goes to j.

    `run_lengths[i]`, where not null, holds weights of runs of 1, 2, ... steps on model i, and P[i] then only says where
    to. `profile` is a file (zoo/replay/profile.py) that takes the place of all three.
    """

    top_logits = 0

    def __init__(self, P: Any = None, C: Any = None, run_lengths: Any = None, profile: str | None = None,
                 **config: Any) -> None:
        super().__init__(**config)
        if profile is not None:
            loaded = load_profile(profile)
            P, C, run_lengths = loaded.P, loaded.C, loaded.run_lengths
        if not isinstance(P, list):
            raise InputError(f"P={P!r}: allowed is a list of rows, one for each role")
        fields = {"P": P, "C": C, "run_lengths": run_lengths}
        spec = Spec.parse(fields | {"N": 1, "L_ms": [1] * len(P), "delta_ms": 1})  # checks what the model checks
        lengths = spec.run_lengths or [None] * spec.M
        self._leaving = [Leaving(i, *pair) for i, pair in enumerate(zip(spec.P, lengths, strict=True))]
        self._kept = spec.C
        for i, (row, kept) in enumerate(zip(spec.P, spec.C, strict=True)):
            if self._leaving[i].stays and kept[i] != 1:
                raise InputError(f"C[{i}][{i}]={kept[i]:g}: allowed is 1, as a request that stays keeps its proposal")
            for j, value in enumerate(kept):
                if row[j] and value > 1:
                    raise InputError(f"C[{i}][{j}]={value:g}: allowed is 0 to 1, as a step proposes one token")

    @property
    def roles(self) -> tuple[str, ...]:
        return self._roles

    @roles.setter
    def roles(self, roles: tuple[str, ...]) -> None:
        if len(roles) != len(self._leaving):
            raise InputError(f"P: has {len(self._leaving)} rows; allowed is {len(roles)}, one for each of "
                             f"{list(roles)}")
        self._roles = roles

    def route(self, result: StepResult) -> torch.Tensor:
        answers = [self._destination(view) for view in result.requests]
        return torch.tensor(answers, device=result.next_token_ids.device)

    def _destination(self, view: RequestView) -> int:
        discarded, first = view.state.get(_STATE, (0, 0))
        number = view.num_accepted + discarded
        seed = view.sampling_params.seed
        target = self._leaving[self.role].target(uniform(seed, number, self.role, Purpose.ROUTE), number - first + 1)
        if target != self.role:  # here, where nobody waits yet
            view.state[_KEPT] = self._keeps(view, number, target)
        return 0 if target == self.role else target + (target < self.role)

    def _keeps(self, view: RequestView, number: int, target: int) -> bool:
        draw = uniform(view.sampling_params.seed, number, self.role, Purpose.ACCEPT)
        return draw < self._kept[self.role][target]

    def send(self, req: RequestView) -> PeerReq:
        discarded, _ = req.state.get(_STATE, (0, 0))
        number = req.num_accepted + discarded
        kept = req.state.pop(_KEPT, None)
        if kept is None:  # routed in another process
            target = req.destination - (req.destination <= self.role)
            kept = self._keeps(req, number, target)
        base = req.peer_locs[req.destination]
        suffix = req.ids_from(base, proposal=kept)
        return PeerReq(req.rid, suffix, base + len(suffix), req.finished(), [discarded + (not kept), number + 1])

    def receive(self, peer_req: PeerReq, req: RequestView) -> list[int]:
        if peer_req.extra is not None:  # nothing is known of a request that begins again after a restart
            req.state[_STATE] = tuple(peer_req.extra)
        return peer_req.token_ids
