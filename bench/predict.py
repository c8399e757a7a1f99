"""What the throughput model says a run should have reached, from its routing and its step times."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.config import RunConfig
from tokenrouter.core import InputError
from tokenrouter.engine.emulated import parse_options
from tokenrouter.subserver.scheduler import SHORT_APPEND
from tokenrouter.throughput import ladder
from tokenrouter.throughput.inputs import quantised
from tokenrouter.throughput.search import evaluate
from tokenrouter.throughput.spec import Spec

PREDICTED = "bench.systems.tokenrouter.serve"  # the system that the model is one of
QUANTA = 60  # in the shortest step: latencies are rounded to these
FLAT = 0.02  # relative growth of a step over all batches, below which it counts as constant


@dataclass(frozen=True)
class Prediction:
    """`throughput` in tokens/s, None where the model says nothing, and then `method` says why."""

    throughput: float | None
    method: str
    standard_error: float = 0.0

    def record(self, measured: float) -> dict[str, Any]:
        ratio = measured / self.throughput if self.throughput else None
        return {"throughput": self.throughput, "ratio": ratio, "method": self.method,
                "standard_error": self.standard_error}


def predict(config: RunConfig, roles: Sequence[str], P: Any, C: Any, tables: Sequence[Sequence[float]] | None,
            B: Sequence[int]) -> Prediction:
    """`tables[i]`: step time of model i by batch size 1..N; None: it is not known. B: thresholds in force."""
    policy = policy_of(config)
    if config.load.mode != "closed":
        return Prediction(None, "not a closed loop")
    if config.system.target != PREDICTED or P is None or tables is None:
        return Prediction(None, "no step times" if P is not None else "no routing probabilities")
    try:
        spec = system(config, roles, P, C, tables)
        if policy == "step_sync":
            return Prediction(ladder.step_sync(spec), "exact")
        if policy == "model_sync":
            return Prediction(ladder.best_model_sync(spec).throughput, "exact")
        value = evaluate(spec.varied(hold=tuple(range(spec.M)) if policy == "hold" else ()), spec.thresholds(list(B)))
    except InputError as error:
        return Prediction(None, str(error))
    return Prediction(value.throughput, value.method, value.standard_error)


def system(config: RunConfig, roles: Sequence[str], P: Any, C: Any, tables: Sequence[Sequence[float]]) -> Spec:
    """The run as the model sees it. InputError if it cannot."""
    delta = min(min(table) for table in tables) / QUANTA
    flat = [[table[0]] if max(table) <= min(table) * (1 + FLAT) else table for table in tables]
    contention = emulated_contention(config)
    return Spec.parse({
        "N": config.load.concurrency, "P": P, "C": C, "delta_ms": delta,
        "L_ms": [[quantised(role, ms, delta) for ms in table] for role, table in zip(roles, flat, strict=True)],
        "contention": contention if contention > 1 else None})


def policy_of(config: RunConfig) -> str:
    return str(config.system.options.get("policy", config.batching.policy))


def emulated_contention(config: RunConfig) -> float:
    return parse_options(config.engine.options).contention if config.engine.kind == "emulated" else 1.0


def nominal_tables(config: RunConfig, roles: Sequence[str]) -> list[list[float]] | None:
    """Step times that emulated models were told to take; None for other engines."""
    if config.engine.kind != "emulated":
        return None
    options = parse_options(config.engine.options)
    models = [options.model(config.models.roles[role].path) for role in roles]
    return [[model.step_ms(b, b) for b in range(1, config.load.concurrency + 1)] for model in models]


def measured_tables(reports: Sequence[Mapping[str, Any]], most: int) -> list[list[float]] | None:
    """Step times in service by batch size, as the straight line that fits a run's decoding steps best and does not
    fall; steps that were interrupted count as the longest 1 % of the others."""
    tables = []
    for report in reports:
        batch, tokens, ms = (np.array(report[name], dtype=float) for name in ("batch_size", "tokens", "step_ms"))
        decode = tokens <= batch * SHORT_APPEND
        if not decode.any():
            return None
        batch, ms = batch[decode], np.minimum(ms[decode], np.percentile(ms[decode], 99))
        slope = max(float(np.polyfit(batch, ms, 1)[0]), 0.0) if len(set(batch)) > 1 else 0.0
        mean = float(ms.mean()) - slope * float(batch.mean())
        tables.append([mean + slope * b for b in range(1, most + 1)])
    return tables if all(min(table) > 0 for table in tables) else None


def usual_threshold(report: Mapping[str, Any]) -> int:
    """The B that most steps were launched under."""
    counts = Counter(report["thresholds"])
    return max(counts, key=lambda B: counts[B], default=report["threshold_B"])


def threshold_changes(report: Mapping[str, Any]) -> list[tuple[float, int]]:
    """[seconds, B]: B at the first step, and at each one where it was another."""
    changes: list[tuple[float, int]] = []
    for second, B in zip(report["start_s"], report["thresholds"], strict=True):
        if not changes or changes[-1][1] != B:
            changes.append((round(second, 4), B))
    return changes
