"""An event simulation of the same system, written apart from the chain so that each can check the other.

It covers what the chain cannot: contention, measured run lengths, and sizes whose states do not fit. Every request's
itinerary (which model writes its s-th step) is drawn beforehand and does not depend on timing, so all candidate B see
the same requests (common random numbers) and their differences carry little noise. Many independent replicas advance
together, one event each per pass, as rows of numpy arrays.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from tokenrouter.throughput.spec import Spec, Thresholds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LANE_ENTRIES = 1 << 17
"""Requests simulated at once (candidates x replicas x N): bounds memory and keeps the working set in the cache."""
_SAME_MOMENT = 1e-9
"""Ticks. Without contention all times are whole and sums exact; with it, equal times differ by rounding."""


@dataclass(frozen=True)
class Estimate:
    """Throughput in tokens/s of one B, from batch means: one batch a replica, its warm-up dropped."""

    B: Thresholds
    throughput: float
    standard_error: float
    replicas: int

    def half_width(self, confidence: float = 0.95) -> float:
        """Of the two-sided Student interval."""
        return self.standard_error * float(student_t.ppf((1 + confidence) / 2, self.replicas - 1))


def draw_itineraries(spec: Spec, replicas: int, steps: int, seed: int) -> NDArray[np.int8]:
    """Model of each step of each request [replicas, N, steps + 1], starting on model 0 (or in a fresh run on it).

    Where spec.run_lengths gives a model's histogram, a request stays there for a drawn run and then leaves by P without
    its diagonal; elsewhere each step routes by P.
    """
    rng = np.random.default_rng(seed)
    shape = (replicas, spec.N)
    routing = np.array(spec.P)
    lengths = spec.run_lengths or (None,) * spec.M
    runs = [None if weights is None else np.cumsum(weights) / np.sum(weights) for weights in lengths]
    measured = np.array([weights is not None for weights in lengths])
    np.fill_diagonal(routing, np.where(measured, 0.0, routing.diagonal()))
    bounds = (routing.cumsum(axis=1) / routing.sum(axis=1, keepdims=True))[:, :-1]

    def run_length(model: NDArray[np.int8]) -> Ints:
        """Steps still to do on the model just entered; 1 where P decides after each step."""
        draws = rng.random(shape)
        left = np.ones(shape, dtype=np.int64)
        for i, cumulative in enumerate(runs):
            if cumulative is not None:
                left = np.where(model == i, 1 + np.searchsorted(cumulative, draws, side="right"), left)
        return left

    path = np.zeros((steps + 1, *shape), dtype=np.int8)
    left = run_length(path[0])
    for step in range(steps):
        here = path[step]
        target = (rng.random(shape)[..., None] >= bounds[here]).sum(axis=2).astype(np.int8)
        path[step + 1] = np.where(left > 1, here, target)
        if measured.any():
            left = np.where(left > 1, left - 1, run_length(path[step + 1]))
    return np.ascontiguousarray(path.transpose(1, 2, 0))


def simulate(
    spec: Spec, candidates: Sequence[Thresholds], events: int = 2000, replicas: int = 64, seed: int = 0
) -> list[Estimate]:
    """T of each candidate B from `replicas` independent runs of `events` completion events, the first fifth dropped."""
    itineraries = draw_itineraries(spec, replicas, events, seed)
    at_once = max(1, _LANE_ENTRIES // (replicas * spec.N))
    estimates: list[Estimate] = []
    for first in range(0, len(candidates), at_once):
        group = candidates[first : first + at_once]
        tokens, seconds = _run(spec, group, itineraries, events)
        estimates += [_estimate(B, made, took) for B, made, took in zip(group, tokens, seconds, strict=True)]
    return estimates


def _estimate(B: Thresholds, tokens: Floats, seconds: Floats) -> Estimate:
    """Ratio of sums; its error from the spread of the replicas' residuals."""
    rate = tokens.sum() / seconds.sum()
    residual = tokens - rate * seconds
    count = len(tokens)
    return Estimate(B, float(rate), float(residual.std(ddof=1) / (np.sqrt(count) * seconds.mean())), count)


def _run(
    spec: Spec, candidates: Sequence[Thresholds], itineraries: NDArray[np.int8], events: int
) -> tuple[Floats, Floats]:
    """Tokens and seconds after the warm-up, each [candidates, replicas]."""
    replicas, requests, length = itineraries.shape
    models, lanes = spec.M, len(candidates) * replicas
    lane = np.repeat(np.arange(lanes), requests)
    path = itineraries.ravel()
    position = np.tile(np.arange(replicas * requests) * length, len(candidates))
    committed = np.array(spec.C).ravel()
    system = _Lanes(spec, np.repeat(np.array(candidates).T, replicas, axis=1))
    system.waiting[0] = requests
    # A request's slot is an entry of `chosen` [2 M, lanes]: its model while it waits there, model + M while it runs.
    slot = lane.copy()
    chosen = np.zeros((2 * models, lanes), dtype=bool)
    chosen[:models] = system.launch()
    slot[chosen.ravel()[slot]] += models * lanes
    tokens, ticks = np.zeros(lanes), np.zeros(lanes)
    for event in range(events):
        elapsed, ended = system.advance()
        chosen[:models], chosen[models:] = False, ended
        moving = np.flatnonzero(chosen.ravel()[slot])
        source = path[position[moving]].astype(np.int64)
        position[moving] += 1
        target = path[position[moving]].astype(np.int64)
        row = lane[moving]
        slot[moving] = target * lanes + row
        system.waiting += np.bincount(slot[moving], minlength=models * lanes).reshape(models, lanes)
        if event >= events // 5:
            tokens += np.bincount(row, committed[source * models + target], minlength=lanes)
            ticks += elapsed
        chosen[:models], chosen[models:] = system.launch(), False
        slot[chosen.ravel()[slot]] += models * lanes
    shape = (len(candidates), replicas)
    return tokens.reshape(shape), ticks.reshape(shape) * (spec.tick_ms / 1000)


class _Lanes:
    """The models' queues and batches in every lane, [M, lanes]; `remaining` in ticks, infinite while idle."""

    def __init__(self, spec: Spec, thresholds: Ints) -> None:
        self.spec = spec
        self.thresholds = thresholds
        self.waiting = np.zeros(thresholds.shape, dtype=np.int64)
        self.batch = np.zeros(thresholds.shape, dtype=np.int64)
        self.remaining = np.full(thresholds.shape, np.inf)
        sizes = range(1, spec.N + 1)
        self.latency = np.array([[np.inf, *(spec.step_ticks(i, b) for b in sizes)] for i in range(spec.M)])
        self.models = np.arange(spec.M)[:, None]
        self.routing = np.array(spec.P)
        device = np.arange(spec.M)
        for group in spec.contention.devices if spec.contention else ():
            device[list(group)] = min(group)
        self.shares = device[:, None] == device

    def advance(self) -> tuple[Floats, NDArray[np.bool_]]:
        """To the next completion in each lane: ticks passed [lanes], batches that ended [M, lanes]."""
        slow = self._slowdown()
        due = self.remaining * slow
        elapsed = due.min(axis=0)
        self.remaining = (due - elapsed) / slow
        ended = self.remaining <= _SAME_MOMENT
        self.remaining[ended] = np.inf
        self.batch[ended] = 0
        return elapsed, ended

    def launch(self) -> NDArray[np.bool_]:
        """Launches of this moment [M, lanes]: all that is ready, then again what held, knowing of these."""
        total = np.zeros(self.waiting.shape, dtype=bool)
        while True:
            ready = np.isinf(self.remaining) & (self.waiting >= self.thresholds)
            now = ready & ~self._held() if self.spec.hold else ready
            self.remaining = np.where(now, self.latency[self.models, self.waiting], self.remaining)
            self.batch = np.where(now, self.waiting, self.batch)
            self.waiting[now] = 0
            total |= now
            if not now.any() or np.array_equal(now, ready):
                return total

    def _held(self) -> NDArray[np.bool_]:
        held = np.zeros(self.waiting.shape, dtype=bool)
        soonest = self.remaining.min(axis=0)
        busy = np.isfinite(soonest)
        soonest = np.where(busy, soonest, 0.0)
        ending = self.batch * (self.remaining == soonest)
        for i in self.spec.hold:
            waiting = self.waiting[i]
            saved = (self.routing[:, i] @ ending) * (self.latency[i, np.maximum(waiting, 1)] - soonest)
            held[i] = busy & (waiting * soonest < saved)
        return held

    def _slowdown(self) -> Floats:
        if self.spec.contention is None:
            return np.ones((self.spec.M, 1))
        sharing = self.shares.astype(np.int64) @ np.isfinite(self.remaining).astype(np.int64)
        return np.where(sharing > 1, self.spec.contention.factor, 1.0)
