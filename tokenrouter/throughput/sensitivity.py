"""What a plan is worth when its figures are off: B* of the changed system, and what keeping the old B would lose."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenrouter.core import InputError
from tokenrouter.throughput.inputs import quantised
from tokenrouter.throughput.search import Effort, search
from tokenrouter.throughput.spec import Spec, Thresholds

_EFFORT = Effort(events=600, replicas=16, report_events=600, report_replicas=16, states=2000)
"""Losses are differences under common random numbers, for which little is enough."""


@dataclass(frozen=True)
class Effect:
    """B* and T(B*) of a changed system; loss = 1 - T(old B) / T(B*), None where the old B could deadlock there."""

    change: str
    B: Thresholds
    throughput: float
    loss: float | None


def sensitivity(
    spec: Spec, B: Thresholds, fixed: Mapping[int, int] | None = None, share: float = 0.2
) -> Iterator[Effect]:
    """Effects of p, each L_i and N being `share` lower or higher than planned. p: leaving model 0, 1 - P[0][0].

    Without changes for which `fixed` is infeasible, and without p where run lengths say when model 0 is left.
    """
    for change, system in _changes(spec, share):
        try:
            start = system.thresholds(list(B))
        except InputError:
            start = None
        try:
            found = search(system, fixed, start, _EFFORT)
        except InputError:  # `fixed` is infeasible for fewer requests
            continue
        kept = None if start is None else found.table[start]
        best = found.table[found.B]
        yield Effect(change, found.B, found.best.throughput, None if kept is None else 1 - kept / best)


def _changes(spec: Spec, share: float) -> Iterator[tuple[str, Spec]]:
    factors = (1 - share, 1 + share)
    leaving = 1 - spec.P[0][0]
    for factor in factors if spec.run_lengths is None else ():
        changed = min(1.0, leaving * factor)
        if changed != leaving:
            row = [1 - changed, *(item * changed / leaving for item in spec.P[0][1:])]
            yield f"p = {changed:.3g}", spec.varied(P=(tuple(row), *spec.P[1:]))
    for i, table in enumerate(spec.L_ms):
        for factor in factors:
            scaled = tuple(quantised("L_ms", ms * factor, spec.delta_ms) for ms in table)
            name = f"L_{i} = {scaled[0]:.3g} ms" if len(table) == 1 else f"L_{i} {factor - 1:+.0%}"
            yield name, spec.varied(L_ms=(*spec.L_ms[:i], scaled, *spec.L_ms[i + 1 :]))
    for requests in sorted({max(1, round(spec.N * factor)) for factor in factors} - {spec.N}):
        yield f"N = {requests}", spec.varied(N=requests, B=None)
