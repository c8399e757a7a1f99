"""What a model does in service, with exponential forgetting: where its requests go, and how long its steps take."""
from __future__ import annotations

from tokenrouter.subserver.messages import Figures
from tokenrouter.subserver.policy import Step

MEMORY = 64  # steps after which a route counts 1/e: after 200 what was before a change counts 4 %
LATENCY_MEMORY = 16  # the same for step times, which vary less and of which a slow model gives fewer
_OUTLIER = 3.0  # times the mean, beyond which a step is one that was interrupted: it counts as that


class Measured:
    """Of one subserver among `count`. Sums fade by 1/e every MEMORY or LATENCY_MEMORY steps."""

    def __init__(self, index: int, count: int) -> None:
        self.index = index
        self.steps = 0
        self._rows, self._tokens = [0.0] * count, [0.0] * count
        self._weight = self._batch = self._ms = self._batch2 = self._batch_ms = 0.0

    def add(self, step: Step) -> None:
        keep = 1 - 1 / MEMORY
        self._rows = [value * keep for value in self._rows]
        self._tokens = [value * keep for value in self._tokens]
        for target, committed in step.moves:
            self._rows[target] += 1
            self._tokens[target] += committed
        if not step.decode:
            return
        self.steps += 1
        keep = 1 - 1 / LATENCY_MEMORY
        b, ms = step.batch, step.elapsed_ms
        if self._weight:
            ms = min(ms, _OUTLIER * self._ms / self._weight)
        self._weight = self._weight * keep + 1
        self._batch = self._batch * keep + b
        self._ms = self._ms * keep + ms
        self._batch2 = self._batch2 * keep + b * b
        self._batch_ms = self._batch_ms * keep + b * ms

    @property
    def known(self) -> bool:
        return self._weight > 0 and sum(self._rows) > 0

    @property
    def mean_batch(self) -> float:
        return self._batch / self._weight

    def figures(self) -> Figures:
        """P and C are shares and means; the latency is the straight line that fits best and does not fall.

        A line needs few steps and says something of batches that have not been seen. One more step at the mean
        batch, counted in its slope's denominator, keeps it flat where batches hardly differ.
        """
        total = sum(self._rows)
        mean_b, mean_ms = self.mean_batch, self._ms / self._weight
        covariance = self._batch_ms / self._weight - mean_b * mean_ms
        variance = self._batch2 / self._weight - mean_b * mean_b
        slope = min(max(covariance / (variance + mean_b / self._weight), 0.0), mean_ms / (2 * mean_b))
        return Figures(
            steps=self.steps,
            P=[rows / total for rows in self._rows],
            C=[tokens / rows if rows else 0.0 for tokens, rows in zip(self._tokens, self._rows, strict=True)],
            base_ms=mean_ms - slope * mean_b, slope_ms=slope)


def drift(now: Figures, then: Figures, batch: float) -> float:
    """The largest relative change: of the probabilities, to that of leaving, and of the step time at `batch`."""
    moved = max(abs(a - b) for a, b in zip(now.P, then.P, strict=True))
    leaving = 1 - max(then.P)
    latency = abs(now.step_ms(batch) / then.step_ms(batch) - 1)
    return max(moved / max(leaving, 0.02), latency)
