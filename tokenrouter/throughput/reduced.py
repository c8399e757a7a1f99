"""An exact short cut for two models of which model 1 always returns (p_10 = 1), as in R2R: milliseconds a B at N = 16.

The paper's chain keeps the residual times of both models. Here the chain is looked at only when model 1 launches. If
model 0 launches at that moment too, or is idle, the state is just model 1's batch f ("fresh", at most N states).
Otherwise model 0 is in mid-step, but at a residual that is known: -l L_1 mod L_0 after l relaunches of model 1 in
mid-step, until after at most L_0 ticks both end together and the state is fresh again. So a cycle from fresh to fresh
is a product of small matrices, the stationary distribution is that of an N x N matrix, and renewal reward gives T.

Letters in here: t requests are at model 0 while model 1 runs a batch of N - t; s of them are in the running step; x are
in it when model 1 returns, and q wait for model 1 by then. Times are in ticks.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from tokenrouter.core import InputError
from tokenrouter.throughput.spec import Spec, Thresholds

Floats = NDArray[np.float64]
_NO_MASS = 1e-15
"""Probability below which the rest of a cycle is dropped: of the size of rounding."""


def applies(spec: Spec) -> bool:
    """Two models, p_10 = 1, 0 < p_01 < 1, constant latencies, geometric runs, no contention; any B, any hold."""
    return (
        spec.M == 2
        and spec.P[1][0] == 1
        and 0 < spec.P[0][1] < 1
        and spec.constant_latency
        and spec.contention is None
        and spec.run_lengths is None
    )


class Reduced:
    """T(B) of one system for many B; what B does not change is computed once. InputError where it does not apply."""

    def __init__(self, spec: Spec) -> None:
        if not applies(spec):
            raise InputError("P: the reduced chain needs P = [[1 - p, p], [1, 0]] with 0 < p < 1 and constant L_ms")
        self.spec = spec
        self.p = spec.P[0][1]
        self.step, self.flight = spec.ticks[0][0], spec.ticks[1][0]
        n = np.arange(spec.N + 1)
        self.stays: Floats = binom.pmf(n[None, :], n[:, None], 1 - self.p)
        """[s, x]: x of s requests stay on model 0 after one step."""
        self.first_end = self._shifted(lambda t, s, x: x - (t - s))
        """[t, s, x]: x requests are at model 0 after its running step of s ends."""
        self.last_end = self._shifted(lambda q, x, k: x - (k - q))
        """[q, x, k]: k requests wait for model 1 after q did, and a step of x ends."""
        self.at_return: dict[tuple[int, int], Floats] = {}
        self.t, self.x = np.meshgrid(n, n, indexing="ij")

    def throughput(self, B: Thresholds) -> float:
        """Exact T(B) in tokens/s of a feasible B."""
        spec = self.spec
        law, duration, served = self._cycle(*B)
        visits = _stationary(law)
        rate = (visits @ served) / (visits @ duration)
        # In the long run model 0 serves 1/p requests for each that model 1 serves.
        per_step = sum(p * c for p, c in zip(spec.P[0], spec.C[0], strict=True))
        return float(rate * (spec.C[1][0] + per_step / self.p) / (spec.tick_ms / 1000))

    def _cycle(self, B0: int, B1: int) -> tuple[Floats, Floats, Floats]:
        """For each fresh batch f = B1..N: the law of the next one, the time until then, the requests model 1 serves."""
        N, t, x = self.spec.N, self.t, self.x
        reach, delay = self._wait(B1)
        reach_after, delay_after = self.last_end @ reach, self.last_end @ delay
        law, time, served = np.zeros((reach.shape[1],) * 2), np.zeros(reach.shape[1]), np.zeros(reach.shape[1])
        batch = np.arange(B1, N + 1)
        mass = np.zeros((N + 1, N + 1, len(batch)))
        mass[N - batch, N - batch, batch - B1] = 1.0
        residual = self.step
        while (in_flight := mass.sum(axis=1)).max() > _NO_MASS:
            ends, residual = (self.flight - residual) // self.step + 1, (residual - self.flight) % self.step
            returned = self._at_return(B0, ends).transpose(0, 2, 1) @ mass
            q = np.maximum(t - x, 0) if ends else np.zeros_like(t)
            together = (x < B0) | (residual == 0) | (self._held_0(x, N - t, residual) & (ends > 0))
            relaunch = ~together & (q >= B1) & ~self._held_1(q, x, residual)
            fates = (together[..., None], relaunch[..., None])
            law += np.tensordot(returned, np.select(fates, (reach[q], 0.0), reach_after[q, x]), axes=((0, 1), (0, 1)))
            waits = np.select((together, relaunch), (delay[q], 0.0), residual + delay_after[q, x])
            time += self.flight * in_flight.sum(axis=0) + np.tensordot(waits, returned, axes=2)
            served += (N - np.arange(N + 1)) @ in_flight
            # A relaunch takes the q that wait; x stay in the step and the N - t that return wait for its end.
            came_from = np.minimum(N - t + x, N)
            mass = (returned * relaunch[..., None])[came_from, x] * (x < t)[..., None]
        return law, time, served

    def _wait(self, B1: int) -> tuple[Floats, Floats]:
        """While model 1 is idle and k wait for it: the law [k, f] of its next batch, and the time [k] until then."""
        N = self.spec.N
        k = np.arange(N + 1)
        reach, delay = np.zeros((N + 1, N + 1 - B1)), np.zeros(N + 1)
        reach[B1:] = np.eye(N + 1 - B1)
        onward = np.where(k[:B1, None] <= k, self.stays[N - k[:B1, None], np.minimum(N - k, N - k[:B1, None])], 0.0)
        again = np.eye(B1) - onward[:, :B1]
        reach[:B1] = np.linalg.solve(again, onward[:, B1:])
        delay[:B1] = np.linalg.solve(again, np.full(B1, float(self.step)))
        return reach, delay

    def _at_return(self, B0: int, ends: int) -> Floats:
        """[t, s, x] when model 1 returns, after `ends` ends of steps of model 0, which stops below B0 requests."""
        key = (B0, ends)
        if key not in self.at_return:
            n = np.arange(self.spec.N + 1)
            step = np.where(n[:, None] < B0, np.eye(len(n)), self.stays)
            none: Floats = np.broadcast_to(np.eye(len(n)), self.first_end.shape)
            law = self.first_end @ np.linalg.matrix_power(step, ends - 1) if ends else none.copy()
            # Too few requests for model 0 when model 1 launches: it stays idle.
            law[n[:B0], n[:B0]] = np.eye(len(n))[:B0]
            self.at_return[key] = law
        return self.at_return[key]

    def _held_0(self, waiting: NDArray[np.int64], batch: NDArray[np.int64], residual: int) -> NDArray[np.bool_]:
        """Whether model 0, at the last end of its step before model 1 returns, waits for that (the hold rule)."""
        left = self.step - residual
        return np.asarray((0 in self.spec.hold) & (waiting * left < batch * (self.step - left)))

    def _held_1(self, waiting: NDArray[np.int64], batch: NDArray[np.int64], residual: int) -> NDArray[np.bool_]:
        """Whether model 1, back while model 0 is in mid-step, waits for the end of that step."""
        return np.asarray((1 in self.spec.hold) & (waiting * residual < batch * self.p * (self.flight - residual)))

    def _shifted(self, stay: Callable[..., NDArray[np.int64]]) -> Floats:
        """[a, s, b]: probability that stay(a, s, b) of s requests stay on model 0; zero where that is no count."""
        a, s, b = np.ogrid[: self.spec.N + 1, : self.spec.N + 1, : self.spec.N + 1]
        staying = stay(a, s, b)
        return np.where((staying >= 0) & (staying <= s), self.stays[s, np.clip(staying, 0, s)], 0.0)


def _stationary(law: Floats) -> Floats:
    """pi of a chain with one recurrent class."""
    balance = np.vstack([(law.T - np.eye(len(law)))[:-1], np.ones(len(law))])
    return np.linalg.solve(balance, np.eye(len(law))[-1])
