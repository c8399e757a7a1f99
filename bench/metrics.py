"""Figures out of records: vLLM's names and formulas (milliseconds carry `_ms`), the steady window, and intervals."""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from bench.records import Record

LATENCIES = ("ttft", "tpot", "itl", "icl", "e2el")
STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
FULL_SHARE = 0.95  # of the concurrency asked for: what counts as steady
_RESAMPLES = 2000


def spread(values: Sequence[float], names: Iterable[str] = STATISTICS) -> dict[str, float | None]:
    """The named statistics (population standard deviation, as in vLLM); None for all if there are no values."""
    if len(values) == 0:
        return dict.fromkeys(names)
    array = np.asarray(values, dtype=float)

    def one(name: str) -> float:
        match name:
            case "mean" | "median" | "std":
                return float(getattr(np, name)(array))
            case _:
                return float(np.percentile(array, float(name.removeprefix("p"))))

    return {name: one(name) for name in names}


def ttft_ms(record: Record) -> float:
    """First token - send."""
    return (record.chunks[0][0] - record.start) * 1e3


def e2el_ms(record: Record) -> float:
    """Last token - send."""
    return (record.chunks[-1][0] - record.start) * 1e3


def tpot_ms(record: Record) -> float:
    """Time per token behind the first; 0 of an answer that came in one chunk."""
    return (e2el_ms(record) - ttft_ms(record)) / max(len(record.token_ids) - 1, 1)


_LATENCY = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "e2el_ms": e2el_ms}


def latencies(records: Iterable[Record]) -> dict[str, float | None]:
    """`mean_ttft_ms` ... `p99_e2el_ms` over completed requests.

    tpot: (e2el - ttft) / (output - 1), one value a request. icl: gaps between chunks, pooled. itl: gap / tokens in the
    chunk, pooled, once for each of its tokens. An answer that came in one chunk has no times between its tokens.
    """
    values: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for record in records:
        if not record.completed or not record.chunks:
            continue
        values["ttft"].append(ttft_ms(record))
        values["e2el"].append(e2el_ms(record))
        if len(record.chunks) > 1:
            values["tpot"].append(tpot_ms(record))
        for (before, _), (now, tokens) in zip(record.chunks, record.chunks[1:], strict=False):
            gap = (now - before) * 1e3
            values["icl"].append(gap)
            values["itl"] += [gap / tokens] * tokens
    return {f"{stat}_{name}_ms": value for name in LATENCIES for stat, value in spread(values[name]).items()}


@dataclass(frozen=True, slots=True)
class Steady:
    """The window from the first to the last moment with at least 95 % of the concurrency asked for.

    `concurrency`: mean number of requests under way in it. Without such a moment all is zero.
    """

    duration_s: float
    output_throughput: float
    concurrency: float


def window(records: Sequence[Record], mode: str, concurrency: int) -> Steady:
    """The steady window of a closed loop; of other loads, which have none, the whole run."""
    if mode == "closed":
        return steady(records, concurrency)
    ends = [record.end for record in records if not math.isnan(record.end)]
    begin, end = min((record.start for record in records), default=math.nan), max(ends, default=math.nan)
    if not end > begin:
        return Steady(0.0, 0.0, 0.0)
    under_way = sum((end if math.isnan(record.end) else record.end) - record.start for record in records)
    took, tokens = end - begin, sum(len(record.token_ids) for record in records)
    return Steady(took, tokens / took, under_way / took)


def goodput(records: Iterable[Record], duration_s: float, slo: Mapping[str, float | None]) -> float | None:
    """Requests/s that kept all of the bounds `ttft_ms`, `tpot_ms`, `e2el_ms` that are given; None if none is."""
    bounds = {name: bound for name, bound in slo.items() if bound is not None}
    if not bounds:
        return None
    kept = [record for record in records if record.completed and record.chunks]
    for name, bound in bounds.items():
        kept = [record for record in kept if _LATENCY[name](record) <= bound]
    return len(kept) / duration_s


def steady(records: Sequence[Record], concurrency: int) -> Steady:
    edges = [(r.start, 1) for r in records] + [(r.end, -1) for r in records if not math.isnan(r.end)]
    # A client that sends its next request at once leaves no gap: ends sort before starts at one time.
    edges.sort()
    full = FULL_SHARE * concurrency
    begin, end, active = math.nan, math.nan, 0
    for time, change in edges:
        if active >= full:
            end = time
        active += change
        if active >= full and math.isnan(begin):
            begin = time
    duration = end - begin
    if math.isnan(duration) or duration <= 0:
        return Steady(0.0, 0.0, 0.0)
    inside = sum(tokens for r in records for time, tokens in r.chunks if begin < time <= end)
    under_way = sum(max(0.0, min(end, end if math.isnan(r.end) else r.end) - max(begin, r.start)) for r in records)
    return Steady(duration, inside / duration, under_way / duration)


def accuracy_interval(problems: Sequence[str], correct: Sequence[bool]) -> tuple[float, float]:
    """95 % interval of the share that is correct.

    Problems asked once: Wilson's, which also holds near 0 and 1. Problems asked repeatedly: bootstrap over problems, as
    the samples of one are not independent.
    """
    by_problem = defaultdict(list)
    for problem, right in zip(problems, correct, strict=True):
        by_problem[problem].append(right)
    if len(by_problem) == len(correct):
        interval = stats.binomtest(sum(correct), len(correct)).proportion_ci(method="wilson")
        return float(interval.low), float(interval.high)
    sums = np.array([(sum(rights), len(rights)) for rights in by_problem.values()], dtype=float)
    drawn = np.random.default_rng(0).integers(len(sums), size=(_RESAMPLES, len(sums)))
    rates = sums[drawn].sum(axis=1)
    low, high = np.percentile(rates[:, 0] / rates[:, 1], [2.5, 97.5])
    return float(low), float(high)


def pass_at_k(problems: Sequence[str], correct: Sequence[bool]) -> dict[str, float] | None:
    """Unbiased pass@k = 1 - C(n - c, k) / C(n, k), mean over problems, for k = 1 and the least number of samples n that
    a problem has; None unless every problem has several."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for problem, right in zip(problems, correct, strict=True):
        counts[problem][0] += 1
        counts[problem][1] += right
    most = min((n for n, _ in counts.values()), default=0)
    if most < 2:
        return None
    return {
        str(k): float(np.mean([1 - special.comb(n - c, k) / special.comb(n, k) for n, c in counts.values()]))
        for k in (1, most)
    }
