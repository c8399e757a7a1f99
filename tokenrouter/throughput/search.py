"""T(B) by the best method that applies, and the search for B* (equation 24).

Exact where it can be: the embedded chain for R2R-like systems, the paper's chain while it is small enough to go through
every feasible B, and beyond that event simulation with common random numbers. Where the feasible set is too large, the
search is coordinate descent, each scan over the whole range of one threshold, as T(B) has several local maxima.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb

import numpy as np

from tokenrouter.core import InputError
from tokenrouter.throughput import chain, reduced
from tokenrouter.throughput.simulate import Estimate, simulate
from tokenrouter.throughput.spec import Spec, Thresholds

EXACT_CHAIN, EXACT_REDUCED, SIMULATION = "exact-chain", "exact-reduced", "simulation"

_ALL_CHAINS = 250_000
"""States of the eager chain (nearly always the largest) times feasible B, up to which all are solved: seconds."""
_REDUCED_N = 80
"""Requests up to which the reduced chain, of time N^4, is used: about a second for a B."""
_ALL_REDUCED = 400
"""Feasible B up to which all reduced chains are solved: N = 27, about four seconds."""
_ALL_SIMULATED = 64
"""Feasible B up to which all are simulated."""
_SCAN = 16
"""Values of one threshold that a scan tries at first; it then halves the spacing around the best."""
_TIE = 1e-10
"""Relative difference below which two throughputs are the same number with different rounding."""


@dataclass(frozen=True)
class Value:
    """T in tokens/s, how it was found, and its standard error (0 when exact)."""

    throughput: float
    method: str
    standard_error: float = 0.0


@dataclass(frozen=True)
class Search:
    """B* and its value, eager (all B_i = 1, nothing held) beside it, and every T(B) that the search looked at.

    `exhaustive`: the table holds every feasible B. `method`: how the table was computed; the values of best and eager
    may be more exact.
    """

    B: Thresholds
    best: Value
    eager: Value
    method: str
    exhaustive: bool
    table: dict[Thresholds, float] = field(repr=False)

    @property
    def gain(self) -> float:
        """T(B*) / T(eager)."""
        return self.best.throughput / self.eager.throughput


@dataclass(frozen=True)
class Effort:
    """Simulated events and replicas of each B in the search, and of the B that are reported; and the states of a chain
    up to which one B is evaluated exactly (20,000 take about two seconds)."""

    events: int = 1000
    replicas: int = 32
    report_events: int = 2000
    report_replicas: int = 64
    seed: int = 0
    states: int = 20_000


DEFAULT_EFFORT = Effort()


def evaluate(spec: Spec, B: Thresholds, effort: Effort = DEFAULT_EFFORT, exact: bool = True) -> Value:
    """T(B) by the reduced chain where it applies, else by the paper's chain while it is small, else by simulation.

    exact=False simulates without trying.
    """
    if exact and _reducible(spec):
        return Value(reduced.Reduced(spec).throughput(B), EXACT_REDUCED)
    if exact and spec.contention is None and spec.run_lengths is None:
        try:
            return Value(chain.solve(spec, B, effort.states).throughput, EXACT_CHAIN)
        except chain.TooManyStates:
            pass
    # Another seed than the search's: the B that won there may owe it to its draws.
    [found] = simulate(spec, [B], effort.report_events, effort.report_replicas, effort.seed + 1)
    return Value(found.throughput, SIMULATION, found.standard_error)


def search(
    spec: Spec,
    fixed: Mapping[int, int] | None = None,
    start: Thresholds | None = None,
    effort: Effort = DEFAULT_EFFORT,
) -> Search:
    """B* of a system; of equal ones the lexicographically smallest.

    fixed: thresholds that are not searched, by model. start: where coordinate descent begins, such as the last B*;
    eager otherwise. Raises InputError when no B with the fixed values is feasible.
    """
    fixed = dict(fixed or {})
    origin = _origin(spec, fixed, start)
    free = [i for i in range(spec.M) if i not in fixed]
    count = feasible_count(spec.N - sum(value - 1 for value in fixed.values()), len(free))
    method, several = _method(spec, count, effort)
    table: dict[Thresholds, float] = {}

    def values(candidates: Sequence[Thresholds]) -> list[float]:
        new = [B for B in candidates if B not in table]
        table.update(zip(new, several(new), strict=True))
        return [table[B] for B in candidates]

    exhaustive = count <= {EXACT_CHAIN: count, EXACT_REDUCED: _ALL_REDUCED, SIMULATION: _ALL_SIMULATED}[method]
    if exhaustive:
        candidates = list(feasible(spec, fixed))
        found = _first_best(candidates, values(candidates))
    else:
        found = _descend(spec, origin, free, values)
    best = evaluate(spec, found, effort)
    # The eager chain is larger than that of B*: not worth trying when that was too large.
    eager = evaluate(spec.varied(hold=()), spec.eager, effort, exact=best.method != SIMULATION)
    return Search(
        B=found,
        best=best,
        eager=eager,
        method=method,
        exhaustive=exhaustive,
        table=dict(sorted(table.items())),
    )


def feasible_count(N: int, free: int) -> int:
    """Size of the feasible set (equation 23) of `free` thresholds."""
    return comb(N - 1 + free, free)


def feasible(spec: Spec, fixed: Mapping[int, int] | None = None) -> Iterator[Thresholds]:
    """The feasible set (equation 23) with some thresholds fixed, in lexicographic order."""
    fixed = fixed or {}

    def extend(head: Thresholds, slack: int) -> Iterator[Thresholds]:
        i = len(head)
        if i == spec.M:
            yield head
            return
        # What later models need beyond 1 because they are fixed must stay available.
        reserved = sum(value - 1 for model, value in fixed.items() if model > i)
        choices = [fixed[i]] if i in fixed else range(1, slack - reserved + 2)
        for value in choices:
            yield from extend((*head, value), slack - (value - 1))

    return extend((), spec.N - 1)


def states(spec: Spec, B: Thresholds, effort: Effort = DEFAULT_EFFORT) -> int | None:
    """Number of states of the paper's chain under B; None where it does not apply or is large."""
    if spec.contention is not None or spec.run_lengths is not None:
        return None
    try:
        return len(chain.enumerate_states(spec, B, effort.states)[0])
    except chain.TooManyStates:
        return None


Evaluator = Callable[[Sequence[Thresholds]], list[float]]


def _method(spec: Spec, count: int, effort: Effort) -> tuple[str, Evaluator]:
    if _reducible(spec):
        small = reduced.Reduced(spec)
        return EXACT_REDUCED, lambda several: [small.throughput(B) for B in several]
    if spec.contention is None and spec.run_lengths is None:
        limit = min(effort.states, _ALL_CHAINS // count)
        try:
            chain.enumerate_states(spec, spec.eager, limit)
            return EXACT_CHAIN, lambda several: [chain.solve(spec, B).throughput for B in several]
        except chain.TooManyStates:
            pass

    def estimates(several: Sequence[Thresholds]) -> list[float]:
        found: list[Estimate] = simulate(spec, several, effort.events, effort.replicas, effort.seed)
        return [estimate.throughput for estimate in found]

    return SIMULATION, estimates


def _reducible(spec: Spec) -> bool:
    return spec.N <= _REDUCED_N and reduced.applies(spec)


def _origin(spec: Spec, fixed: Mapping[int, int], start: Thresholds | None) -> Thresholds:
    """Where to begin: `start` or eager, with the fixed thresholds in place."""
    for model in fixed:
        if not 0 <= model < spec.M:
            raise InputError(f"fixed: there is no model {model}; there are {spec.M}")
    eager = spec.thresholds([fixed.get(i, 1) for i in range(spec.M)], "fixed")
    if start is None:
        return eager
    return spec.thresholds([fixed.get(i, value) for i, value in enumerate(start)], "start")


def _first_best(candidates: Sequence[Thresholds], throughputs: Sequence[float]) -> Thresholds:
    top = max(throughputs)
    return min(B for B, value in zip(candidates, throughputs, strict=True) if value >= top * (1 - _TIE))


def _descend(spec: Spec, origin: Thresholds, free: Sequence[int], values: Evaluator) -> Thresholds:
    """Scans one threshold after the other until a round changes nothing."""
    here = origin
    while True:
        before, worth = here, values([here])[0]
        for model in free:
            here = _scan(spec, here, model, values)
        if here == before or values([here])[0] <= worth * (1 + _TIE):
            return min(here, before)


def _scan(spec: Spec, here: Thresholds, model: int, values: Evaluator) -> Thresholds:
    """The best value of one threshold, others kept: evenly spaced ones first, then ever closer ones around the best."""
    most = spec.N - sum(value - 1 for i, value in enumerate(here) if i != model)

    def line(points: Sequence[int]) -> list[Thresholds]:
        return [(*here[:model], value, *here[model + 1 :]) for value in points]

    spacing = -(-most // _SCAN)
    tried = sorted({here[model], *np.arange(1, most + 1, spacing).tolist(), most})
    best = _first_best(line(tried), values(line(tried)))
    while spacing > 1:
        spacing = -(-spacing // 2)
        near = [value for value in (best[model] + step for step in (-spacing, 0, spacing)) if 1 <= value <= most]
        best = _first_best(line(near), values(line(near)))
    return best
