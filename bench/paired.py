"""Bootstrap intervals of comparisons, over repeats and over requests.

A repeat is drawn first, which pairs runs that were made one after the other, and then requests of it, which pairs the
same problem in both: what all of them share, such as a slow minute of the machine or a hard problem, cancels out.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

RESAMPLES = 2000
KEY = ["id", "sample"]
# Of what there are intervals, and its field in summary.json.
MEASURES = {
    "tok/s": "output_throughput", "tpot ms": "mean_tpot_ms", "ttft ms": "mean_ttft_ms", "e2el ms": "mean_e2el_ms",
}


@dataclass(frozen=True, slots=True)
class Interval:
    """Of 95 %."""

    low: float
    high: float


@dataclass
class Paired:
    """Repeats of one run: their folders and summaries, in the order in which they were made."""

    folders: Sequence[Path]
    summaries: Sequence[dict[str, Any]]

    @cached_property
    def requests(self) -> list[pd.DataFrame]:
        """Of each repeat the answered requests, by KEY: output_tokens, ttft_ms, e2el_ms, tpot_ms, grade."""
        return [_answered(folder / "requests.jsonl") for folder in self.folders]

    def ratio(self, base: Paired, measure: str, figure: Callable[[dict[str, Any]], float | None] | None = None
              ) -> tuple[float, Interval] | None:
        """Of the measure (one of MEASURES) to that of `base`: the median over the repeats, and its interval. None where
        a run has no such figure. `figure`: of a summary, if not the measure's field.

        Tokens/s of drawn requests: in a closed loop as many tokens as they have over the time that they took, which is
        scaled so that all requests together give the run's own figure.
        """
        own, other = ([figure(run) if figure else run[MEASURES[measure]] for run in runs]
                      for runs in (self.summaries, base.summaries))
        if not all([*own, *other]):
            return None
        ratios = np.array(own) / np.array(other)

        def value(drawn: np.ndarray) -> np.ndarray:
            tokens, ttft, e2el, tpot = drawn
            match measure:
                case "tok/s":
                    return np.asarray(np.nansum(tokens, -1) / np.nansum(e2el, -1))
                case "ttft ms":
                    return np.asarray(np.nanmean(ttft, -1))
                case "e2el ms":
                    return np.asarray(np.nanmean(e2el, -1))
                case _:
                    return np.asarray(np.nanmean(tpot, -1))

        def log_ratio(own: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.asarray(np.log(value(own) / value(other)))

        shifts = np.zeros(len(self.summaries))
        columns = self._columns(base, FIGURES)
        if measure == "tok/s":
            shifts = np.log(ratios) - [float(log_ratio(*repeat)) for repeat in columns]
        return float(np.median(ratios)), _interval(np.exp(_means(columns, log_ratio, shifts)))

    def difference(self, base: Paired) -> Interval:
        """Of the shares of right answers."""
        def shares(own: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.asarray(np.nanmean(own[0], -1) - np.nanmean(other[0], -1))

        return _interval(_means(self._columns(base, ["grade"]), shares, np.zeros(len(self.summaries))))

    def _columns(self, base: Paired, names: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each repeat [names, requests], own and base's, of the requests that both answered."""
        found = []
        for own, other in zip(self.requests, base.requests, strict=True):
            both = own.index.intersection(other.index)
            found.append((own.loc[both, names].to_numpy(float).T, other.loc[both, names].to_numpy(float).T))
        return found


FIGURES = ["output_tokens", "ttft_ms", "e2el_ms", "tpot_ms"]


def _answered(file: Path) -> pd.DataFrame:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    frame = pd.DataFrame([{name: row[name] for name in (*KEY, "output_tokens", "ttft_ms", "e2el_ms", "grade")}
                          for row in rows if row["error"] is None and row["e2el_ms"] is not None])
    frame["tpot_ms"] = (frame["e2el_ms"] - frame["ttft_ms"]) / (frame["output_tokens"] - 1).replace(0, np.nan)
    return frame.set_index(KEY)


def _means(repeats: list[tuple[np.ndarray, np.ndarray]], statistic: Any, shifts: np.ndarray) -> np.ndarray:
    """[RESAMPLES] means over drawn repeats of `statistic(own, base)` of drawn requests, which is shifted by repeat."""
    generator = np.random.default_rng(0)
    drawn = np.empty((len(repeats), RESAMPLES, len(repeats)))
    for number, (own, other) in enumerate(repeats):
        for place in range(len(repeats)):
            rows = generator.integers(own.shape[1], size=(RESAMPLES, own.shape[1]))
            drawn[number, :, place] = statistic(own[:, rows], other[:, rows]) + shifts[number]
    chosen = generator.integers(len(repeats), size=(RESAMPLES, len(repeats)))
    return np.asarray(np.take_along_axis(drawn, chosen[None], 0)[0].mean(-1))


def _interval(values: np.ndarray) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))
