"""What a model does in service: where its requests go, and how long its steps take."""
from __future__ import annotations

import math
from collections.abc import Sequence

from tokenrouter.subserver.messages import Figures
from tokenrouter.subserver.policy import Step

MEMORY = 64  # steps after which a route counts 1/e among the recent ones, which tell a change
LATENCY_MEMORY = 16  # the same for step times, which vary less and of which a slow model gives fewer
LASTING = 16  # times as long is remembered what has not changed: figures are of that
RESTART = 0.125  # weight of the recent routes with which a memory begins anew, so that it soon consists of later ones
SURE = 3.0  # standard errors by which recent figures must differ to be a change
NOTABLE = 2.0  # the same for a difference from the figures of a plan
MOST_BY_ROWS = 0.9  # of a step's time that may grow with its rows, as where each reads a long context of its own
RESOLUTION = 0.01  # relative standard error of a step time that is always allowed for: they are not independent
_OUTLIER = 3.0  # times the mean, beyond which a step is one that was interrupted: it counts as that


class _Sums:
    """Of values that come with each step: recent ones, forgotten by 1/e in `memory` steps, and lasting ones."""

    def __init__(self, count: int, memory: int) -> None:
        self._keep, self._keep_lasting = 1 - 1 / memory, 1 - 1 / (memory * LASTING)
        self.recent, self.lasting = [0.0] * count, [0.0] * count

    def add(self, values: Sequence[float]) -> None:
        keep, lasting = self._keep, self._keep_lasting
        self.recent = [kept * keep + value for kept, value in zip(self.recent, values, strict=True)]
        self.lasting = [kept * lasting + value for kept, value in zip(self.lasting, values, strict=True)]

    def restart(self, weight: float) -> None:
        self.lasting = [kept * weight for kept in self.recent]


class Measured:
    """Of one subserver among `count`. Figures are of all steps since the last change, as far as they are remembered."""

    def __init__(self, index: int, count: int) -> None:
        self.index = index
        self.steps = 0
        self._routes = _Sums(2 * count, MEMORY)  # rows, and tokens, by where they went
        self._times = _Sums(6, LATENCY_MEMORY)  # 1, b, ms, b^2, b ms, ms^2
        self._count = count

    def add(self, step: Step) -> None:
        values = [0.0] * (2 * self._count)
        for target, committed in step.moves:
            values[target] += 1
            values[self._count + target] += committed
        self._routes.add(values)
        if not step.decode:
            return
        self.steps += 1
        b, ms = step.batch, step.elapsed_ms
        if weight := self._times.recent[0]:
            ms = min(ms, _OUTLIER * self._times.recent[2] / weight)
        self._times.add((1, b, ms, b * b, b * ms, ms * ms))

    @property
    def known(self) -> bool:
        return self.steps > 0 and sum(self._routes.lasting[: self._count]) > 0

    def figures(self) -> Figures:
        """P and C are shares and means; the latency is the straight line that fits best and does not fall.

        A line needs few steps and says something of batches that have not been seen.
        """
        self._notice_changes()
        rows, tokens = self._routes.lasting[: self._count], self._routes.lasting[self._count :]
        base, slope, _ = _line(self._times.lasting)
        return Figures(
            steps=self.steps,
            P=[row / sum(rows) for row in rows],
            C=[committed / row if row else 0.0 for committed, row in zip(tokens, rows, strict=True)],
            base_ms=base, slope_ms=slope)

    def drift(self, now: Figures, then: Figures) -> float:
        """The largest relative change beyond what chance explains: of the probabilities, to that of leaving, and of the
        step time at the batch that is usual."""
        total = sum(self._routes.lasting[: self._count])
        moved = max(abs(p - before) - NOTABLE * _error(p, total) for p, before in zip(now.P, then.P, strict=True))
        leaving = 1 - max(then.P)
        weight, batch = self._times.lasting[:2]
        usual, (_, _, error) = batch / weight, _line(self._times.lasting)
        expected = then.step_ms(usual)
        late = abs(now.step_ms(usual) - expected) - NOTABLE * error
        return max(moved / max(leaving, 0.02), late / expected, 0.0)

    def _notice_changes(self) -> None:
        """What differs from what lasted replaces it."""
        recent, lasting = self._routes.recent[: self._count], self._routes.lasting[: self._count]
        total = sum(recent)
        for row, kept in zip(recent, lasting, strict=True):
            p = kept / sum(lasting)
            if abs(row / total - p) > SURE * _error(p, total):
                self._routes.restart(RESTART)
                break
        base, slope, _ = _line(self._times.lasting)
        weight, batch, ms = self._times.recent[:3]
        _, _, error = _line(self._times.recent)
        if abs(ms - weight * base - batch * slope) > SURE * error * weight:
            self._times.restart(1.0)


def _error(p: float, total: float) -> float:
    """Standard error of a share of `total` independent rows, one row's worth at the least."""
    return math.sqrt(max(p * (1 - p), 1 / total) / total)


def _line(sums: Sequence[float]) -> tuple[float, float, float]:
    """ms = base + slope b, and the standard error of a mean time.

    One more step at the mean batch, counted in the slope's denominator, keeps it flat where batches hardly differ.
    """
    b, ms, b2, b_ms, ms2 = (value / sums[0] for value in sums[1:])
    covariance, variance = b_ms - b * ms, b2 - b * b
    slope = min(max(covariance / (variance + b / sums[0]), 0.0), MOST_BY_ROWS * ms / b)
    rest = max(ms2 - ms * ms - slope * covariance, 0.0)
    return ms - slope * b, slope, math.hypot(math.sqrt(rest / sums[0]), RESOLUTION * ms)
