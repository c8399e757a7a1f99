"""What the throughput model is asked about, validated once, so that the solvers need not look again."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from numbers import Integral, Real

from tokenrouter.core import InputError

Row = tuple[float, ...]
Thresholds = tuple[int, ...]
NEEDED = ("N", "P", "C", "L_ms", "delta_ms")
MOST_REQUESTS = 1024
"""Simulations of more would need gigabytes."""
MOST_QUANTA = 1e9
"""Beyond, a latency is no longer told from one that is not a multiple of delta."""


@dataclass(frozen=True)
class Contention:
    """Models that share a device run `factor` times slower while another model of their device runs."""

    factor: float
    devices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Spec:
    """A closed system of M models and N requests in the notation of the paper's Table 11.

    N: active requests. P[i][j]: probability that a step on i routes to j (eq. 2). C[i][j]: tokens committed then.
    L_ms[i]: step latency of model i by batch size (entry b - 1; the last entry holds for all larger batches, so a
    single entry is the paper's constant latency). delta_ms: the time quantum, of which latencies are multiples (eq. 6).
    B: thresholds to evaluate. hold: models that wait for a batch about to return. contention: see Contention.
    run_lengths[i]: weights of runs of 1, 2, ... consecutive steps on model i instead of the geometric law of P[i][i].

    Build it with `parse`, which checks every field.
    """

    N: int
    P: tuple[Row, ...]
    C: tuple[Row, ...]
    L_ms: tuple[Row, ...]
    delta_ms: float
    B: Thresholds | None = None
    hold: tuple[int, ...] = ()
    contention: Contention | None = None
    run_lengths: tuple[Row | None, ...] | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> Spec:
        """Checks JSON-like fields; raises InputError naming the field, the value and what is allowed."""
        known = {field.name for field in fields(cls)}
        for name in raw:
            if name not in known:
                raise InputError(f"{name}: unknown field; known are {', '.join(sorted(known))}")
        if missing := [name for name in NEEDED if raw.get(name) is None]:
            raise InputError(f"{', '.join(missing)}: missing")
        delta = positive("delta_ms", raw["delta_ms"])
        given = items("L_ms", raw["L_ms"])
        latencies = tuple(_latencies(f"L_ms[{i}]", item, delta) for i, item in enumerate(given))
        models = len(latencies)
        if models == 0:
            raise InputError("L_ms: [] holds no model; at least one is needed")
        P = _routing(_matrix("P", raw["P"], models))
        spec = cls(
            N=whole("N", raw["N"], most=MOST_REQUESTS),
            P=P,
            C=_matrix("C", raw["C"], models),
            L_ms=latencies,
            delta_ms=delta,
            hold=_hold(raw.get("hold"), models),
            contention=_contention(raw.get("contention"), models),
            run_lengths=_run_lengths(raw.get("run_lengths"), P),
        )
        return spec if raw.get("B") is None else spec.varied(B=spec.thresholds(raw["B"]))

    def varied(self, **changes: object) -> Spec:
        """The same system with some fields changed."""
        return type(self)(**{field.name: getattr(self, field.name) for field in fields(self)} | changes)

    @property
    def M(self) -> int:
        return len(self.L_ms)

    @property
    def eager(self) -> Thresholds:
        return (1,) * self.M

    @cached_property
    def _gcd(self) -> int:
        return reduce(math.gcd, (round(ms / self.delta_ms) for table in self.L_ms for ms in table))

    @property
    def tick_ms(self) -> float:
        """The largest quantum that all latencies are multiples of: T does not depend on delta, the work does."""
        return self.delta_ms * self._gcd

    @cached_property
    def ticks(self) -> tuple[tuple[int, ...], ...]:
        """Step latencies in ticks, by model and batch size as in L_ms."""
        return tuple(tuple(round(ms / self.delta_ms) // self._gcd for ms in table) for table in self.L_ms)

    @property
    def constant_latency(self) -> bool:
        return all(len(set(table)) == 1 for table in self.L_ms)

    def step_ticks(self, model: int, batch: int) -> int:
        """L_i(b) in ticks."""
        table = self.ticks[model]
        return table[min(batch, len(table)) - 1]

    def thresholds(self, raw: object, name: str = "B") -> Thresholds:
        """Checks a threshold vector against equation 23 and, so that no state is a deadlock, equation 22."""
        values = tuple(whole(f"{name}[{i}]", item, most=self.N) for i, item in enumerate(items(name, raw)))
        if len(values) != self.M:
            raise InputError(f"{name}: {list(values)} has {len(values)} entries; {self.M} models need {self.M}")
        if sum(values) - self.M >= self.N:
            raise InputError(f"{name}: {list(values)} can deadlock; the sum of (B_i - 1) must be below N = {self.N}")
        return values


def items(name: str, raw: object) -> Sequence[object]:
    """A list, but not a string."""
    if isinstance(raw, str | bytes) or not isinstance(raw, Sequence):
        raise InputError(f"{name}: {raw!r} is not a list")
    return raw


def whole(name: str, raw: object, least: int = 1, most: int | None = None) -> int:
    """An integer from `least` to `most`."""
    bound = f"of at least {least}" if most is None else f"from {least} to {most}"
    value = int(raw) if isinstance(raw, Integral) and not isinstance(raw, bool) else None
    if value is None or value < least or (most is not None and value > most):
        raise InputError(f"{name}: {raw!r} is not a whole number {bound}")
    return value


def number(name: str, raw: object) -> float:
    """A finite real number that is not negative."""
    try:
        value = float(raw) if isinstance(raw, Real) and not isinstance(raw, bool) else math.nan
    except OverflowError:
        value = math.inf
    if not 0 <= value < math.inf:
        raise InputError(f"{name}: {raw!r} is not a finite number of at least 0")
    return value


def positive(name: str, raw: object) -> float:
    """A finite real number above 0."""
    value = number(name, raw)
    if value == 0:
        raise InputError(f"{name}: {raw!r} is not positive")
    return value


def _matrix(name: str, raw: object, models: int) -> tuple[Row, ...]:
    rows = tuple(
        tuple(number(f"{name}[{i}][{j}]", item) for j, item in enumerate(items(f"{name}[{i}]", row)))
        for i, row in enumerate(items(name, raw))
    )
    if len(rows) != models or any(len(row) != models for row in rows):
        shape = f"{len(rows)} rows of {sorted({len(row) for row in rows})} entries"
        raise InputError(f"{name}: {shape}; L_ms gives {models} models, so {models} x {models} is needed")
    return rows


def _routing(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    for i, row in enumerate(rows):
        if abs(math.fsum(row) - 1) > 1e-6:
            raise InputError(f"P[{i}]: {list(row)} sums to {math.fsum(row):g}; a row of probabilities must sum to 1")
    return rows


def _latencies(name: str, raw: object, delta: float) -> Row:
    """One latency, or a table of latencies by batch size."""
    table = items(name, raw) if isinstance(raw, Sequence) and not isinstance(raw, str) else [raw]
    if not table:
        raise InputError(f"{name}: [] holds no latency; give one, or one for each batch size from 1")
    values = tuple(positive(name, item) for item in table)
    for value in values:
        if value / delta > MOST_QUANTA:
            raise InputError(f"{name}: {value:g} ms is more than {MOST_QUANTA:g} quanta of delta_ms = {delta:g}")
        if round(value / delta) < 1 or abs(value / delta - round(value / delta)) > 1e-6:
            raise InputError(f"{name}: {value:g} ms is not a multiple of delta_ms = {delta:g}")
    return values


def _models(name: str, raw: object, models: int) -> tuple[int, ...]:
    values = tuple(whole(f"{name}[{i}]", item, least=0) for i, item in enumerate(items(name, raw)))
    if len(set(values)) != len(values) or any(value >= models for value in values):
        raise InputError(f"{name}: {list(values)} must hold different model indices below {models}")
    return values


def _hold(raw: object, models: int) -> tuple[int, ...]:
    return () if raw is None else tuple(sorted(_models("hold", raw, models)))


def _contention(raw: object, models: int) -> Contention | None:
    """Either a factor, for all models on one device, or {"factor": ..., "devices": [[0, 1], ...]}."""
    if raw is None:
        return None
    if isinstance(raw, Contention):
        return raw
    everything: list[object] = [list(range(models))]
    given = raw if isinstance(raw, Mapping) else {"factor": raw}
    if not set(given) <= {"factor", "devices"} or "factor" not in given:
        raise InputError(f"contention: {raw!r} must be a factor or an object with factor and devices")
    factor = number("contention.factor", given["factor"])
    if factor < 1:
        raise InputError(f"contention.factor: {factor:g} is below 1; it says how many times slower models run together")
    devices = tuple(
        _models(f"contention.devices[{i}]", group, models)
        for i, group in enumerate(items("contention.devices", given.get("devices", everything)))
    )
    shared = [model for group in devices for model in group]
    if len(set(shared)) != len(shared):
        raise InputError(f"contention.devices: {[list(group) for group in devices]} places a model twice")
    return Contention(factor, devices)


def _run_lengths(raw: object, P: tuple[Row, ...]) -> tuple[Row | None, ...] | None:
    if raw is None:
        return None
    tables = items("run_lengths", raw)
    models = len(P)
    if len(tables) != models:
        raise InputError(f"run_lengths: {len(tables)} entries; {models} models need {models} histograms or nulls")
    return tuple(
        None if table is None else _histogram(f"run_lengths[{i}]", table, P[i][i]) for i, table in enumerate(tables)
    )


def _histogram(name: str, raw: object, stay: float) -> Row:
    if stay == 1:
        raise InputError(f"{name}: given for a model that by P is never left, so that its runs never end")
    weights = tuple(number(name, item) for item in items(name, raw))
    if sum(weights) <= 0:
        raise InputError(f"{name}: {list(weights)} has no weight; entry l - 1 is the weight of runs of l steps")
    return weights
