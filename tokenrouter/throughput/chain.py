"""The paper's Markov chain (Appendix D), state by state: exact for any number of models while it fits in memory.

What the paper leaves open is decided so: an idle model launches all its waiting requests as one batch once they are at
least B_i; a busy model admits nothing; steps that end together all end, and all their requests are routed, before any
launch is decided; a request that stays on its model passes through the queue like any other; a handoff takes no time;
the system starts with all N requests launched on model 0, and the stationary distribution is the one of the recurrent
class reached from there.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, identity
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from tokenrouter.core import InputError
from tokenrouter.throughput.spec import Spec, Thresholds

State = tuple[int, ...]
"""(k_0, b_0, r_0, k_1, b_1, r_1, ...): waiting requests, running batch and its residual ticks (equation 4)."""
Outcomes = tuple[tuple[tuple[int, ...], float], ...]
"""Arrivals at each model, and their probability."""


class TooManyStates(InputError):
    """The chain has more states than the caller allows."""


@dataclass(frozen=True)
class Solution:
    """Steady state under one B: throughput in tokens/s; per model the busy share of time, the mean batch of a step and
    the mean admission delay in ms (nan for a model that is never reached)."""

    throughput: float
    states: int
    recurrent: int
    busy: tuple[float, ...]
    mean_batch: tuple[float, ...]
    mean_wait_ms: tuple[float, ...]


def solve(spec: Spec, B: Thresholds, max_states: int = 100_000) -> Solution:
    """T(B) by equations 16 and 21.

    Raises InputError where more than one closed class is reached from the start, where contention or measured run
    lengths are asked for (the state does not hold them), and TooManyStates beyond `max_states`.
    """
    if spec.contention is not None or spec.run_lengths is not None:
        raise InputError("contention, run_lengths: the exact chain knows neither; simulate the system instead")
    states, transition = enumerate_states(spec, B, max_states)
    members = closed_class(transition)
    weight = stationary(transition[members][:, members])
    return _steady_state(spec, states[members], weight, len(states))


def enumerate_states(spec: Spec, B: Thresholds, max_states: int) -> tuple[NDArray[np.int64], csr_array]:
    """All states reachable from the start, breadth first [S, 3M], and the transition matrix [S, S] (equation 15)."""
    settle = _launcher(spec, B)
    routed = _router(spec)
    start = settle([(spec.N if i == 0 else 0, 0, 0) for i in range(spec.M)])
    number = {start: 0}
    order = [start]
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for row, state in enumerate(order):
        for successor, probability in _successors(state, routed, settle):
            column = number.setdefault(successor, len(order))
            if column == len(order):
                order.append(successor)
                if column >= max_states:
                    raise TooManyStates(f"the chain for B = {list(B)} has more than {max_states} states")
            rows.append(row)
            columns.append(column)
            values.append(probability)
    shape = (len(order), len(order))
    return np.array(order, dtype=np.int64), csr_array((values, (rows, columns)), shape=shape)


def closed_class(transition: csr_array) -> NDArray[np.int64]:
    """The states [S'] of the one closed class; InputError when there are several."""
    count, label = connected_components(transition, directed=True, connection="strong")
    source, target = transition.nonzero()
    leaves = np.zeros(count, dtype=bool)
    leaves[label[source][label[source] != label[target]]] = True
    closed = np.flatnonzero(~leaves)
    if len(closed) > 1:
        raise InputError(f"P: {len(closed)} closed classes of states can be reached, so there is no one throughput")
    return np.flatnonzero(label == closed[0])


def stationary(transition: csr_array) -> NDArray[np.float64]:
    """pi [S] of an irreducible chain (equation 16), by fixing one component and solving for the others.

    The fixed state is one that a short power iteration finds likely, which keeps the factorisation well conditioned
    when the chain moves between groups of states only rarely.
    """
    size = transition.shape[0]
    if size == 1:
        return np.ones(1)
    flow = transition.T.tocsr()
    guess = np.full(size, 1 / size)
    for _ in range(50):
        guess = (guess + flow @ guess) / 2
    fixed = int(guess.argmax())
    others = np.delete(np.arange(size), fixed)
    balance = (identity(size, format="csr") - flow).tocsc()
    weight = np.ones(size)
    weight[others] = splu(balance[others][:, others]).solve(-balance[others][:, [fixed]].toarray().ravel())
    weight /= weight.sum()
    return weight


def _successors(
    state: State, routed: Callable[[tuple[tuple[int, int], ...]], Outcomes], settle: Callable[[list[State]], State]
) -> Iterator[tuple[State, float]]:
    """The states after the next completion event (equation 14) with their probabilities; a state may appear twice."""
    models = [state[at : at + 3] for at in range(0, len(state), 3)]
    elapsed = min(residual for _, batch, residual in models if batch)
    ending = tuple((i, batch) for i, (_, batch, residual) in enumerate(models) if batch and residual == elapsed)
    ended = {i for i, _ in ending}
    for arrivals, probability in routed(ending):
        yield settle([
            (waiting + arrived, 0, 0) if i in ended else (waiting + arrived, batch, residual - elapsed if batch else 0)
            for i, ((waiting, batch, residual), arrived) in enumerate(zip(models, arrivals, strict=True))
        ]), probability


def _launcher(spec: Spec, B: Thresholds) -> Callable[[list[State]], State]:
    """The launch decisions of one moment, given (waiting, batch, residual) of each model.

    All ready models decide together on what is running; those that hold decide again when others have launched.
    """

    def holds(i: int, models: list[State]) -> bool:
        running = [(models[j][2], j) for j in range(len(models)) if models[j][1]]
        if i not in spec.hold or not running:
            return False
        residual = min(running)[0]
        returning = sum(models[j][1] * spec.P[j][i] for left, j in running if left == residual)
        waiting = models[i][0]
        return waiting * residual < returning * (spec.step_ticks(i, waiting) - residual)

    def settle(models: list[State]) -> State:
        while True:
            ready = [i for i, (waiting, batch, _) in enumerate(models) if not batch and waiting >= B[i]]
            launched = [i for i in ready if not holds(i, models)]
            for i in launched:
                models[i] = (0, models[i][0], spec.step_ticks(i, models[i][0]))
            if not launched or len(launched) == len(ready):
                return tuple(value for model in models for value in model)

    return settle


def _router(spec: Spec) -> Callable[[tuple[tuple[int, int], ...]], Outcomes]:
    """Arrivals at each model when the given (model, batch) pairs end together: equations 11 and 13."""

    @cache
    def routed(ending: tuple[tuple[int, int], ...]) -> Outcomes:
        (model, batch), rest = ending[0], ending[1:]
        own = tuple(multinomial(batch, spec.P[model]))
        if not rest:
            return own
        total: dict[tuple[int, ...], float] = {}
        for first, p in own:
            for second, q in routed(rest):
                arrivals = tuple(a + b for a, b in zip(first, second, strict=True))
                total[arrivals] = total.get(arrivals, 0.0) + p * q
        return tuple(total.items())

    return routed


def multinomial(n: int, row: tuple[float, ...]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Where n requests go, and its probability, for each outcome of a step routed by `row`."""
    if len(row) == 1:
        if n == 0 or row[0] > 0:
            yield (n,), row[0] ** n
        return
    for first in range(n + 1 if row[0] > 0 else 1):
        weight = comb(n, first) * row[0] ** first
        for others, p in multinomial(n - first, row[1:]):
            yield (first, *others), weight * p


def _steady_state(spec: Spec, states: NDArray[np.int64], weight: NDArray[np.float64], total: int) -> Solution:
    waiting, batch, residual = (states[:, at::3] for at in range(3))
    running = batch > 0
    elapsed = np.where(running, residual, np.iinfo(np.int64).max).min(axis=1)
    ending = running & (residual == elapsed[:, None])
    tick_s = spec.tick_ms / 1000
    duration = float(weight @ elapsed)
    steps = weight @ ending
    served = weight @ (batch * ending)
    routing = np.array(spec.P)
    committed = served @ (routing * np.array(spec.C)).sum(axis=1)
    queued = (weight * elapsed) @ waiting
    with np.errstate(invalid="ignore"):
        mean_batch, mean_wait = served / steps, queued / served * spec.tick_ms
    return Solution(
        throughput=float(committed / (duration * tick_s)),
        states=total,
        recurrent=len(states),
        busy=tuple(((weight * elapsed) @ running / duration).tolist()),
        mean_batch=tuple(mean_batch.tolist()),
        mean_wait_ms=tuple(mean_wait.tolist()),
    )
