"""Where a plan's figures come from: a spec file, a run's summary.json, a routing profile."""
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tokenrouter.core import InputError
from tokenrouter.throughput.spec import items, number, positive

Fields = dict[str, object]
"""Fields of Spec, not yet checked."""
_ROUNDING = 1e-3
"""How far from 1 the rows of a measured P may sum, as files hold rounded figures."""


def read_json(path: str) -> Fields:
    """The JSON object in a file; InputError where there is none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}; a JSON object is needed")
    return content


def from_summary(path: str, delta_ms: float) -> Fields:
    """A run: routing and latencies as measured in service, its concurrency, and its thresholds if it had any.

    Models are in the order of routing.step_ms, which is that of the rows of routing.P. Latencies are rounded to
    multiples of delta_ms.
    """
    summary = read_json(path)
    routing = _object(path, summary, "routing")
    steps = _object(path, routing, "step_ms")
    latencies = [_object(path, steps, model).get("mean") for model in steps]
    thresholds = routing.get("threshold_B")
    named = list(thresholds.values()) if isinstance(thresholds, dict) else []
    return _measured(path, routing) | {
        "N": _object(path, summary, "load").get("concurrency"),
        "L_ms": [quantised(f"step_ms of {model}", ms, delta_ms) for model, ms in zip(steps, latencies, strict=True)],
        "B": named if named and None not in named else None,
    }


def measured_throughput(path: str) -> float | None:
    """The run's own tokens/s in its steady window, to stand beside the prediction; None where it has none."""
    steady = read_json(path).get("steady")
    value = steady.get("output_throughput") if isinstance(steady, dict) else None
    return None if value is None else number("steady.output_throughput", value)


def from_profile(path: str) -> Fields:
    """A routing profile: P, C, and run lengths by model, if it has them."""
    profile = read_json(path)
    return _measured(path, profile) | {"run_lengths": profile.get("run_lengths")}


def r2r_shape(p: float) -> Fields:
    """Equation 25: the small model hands over with probability p, the large one always returns."""
    return {"P": [[1 - p, p], [1.0, 0.0]], "C": [[1.0, 0.0], [1.0, 0.0]]}


def quantised(name: str, ms: object, delta_ms: float) -> float:
    """A measured latency as the nearest multiple of delta_ms, at least one."""
    return max(1, round(positive(name, ms) / delta_ms)) * delta_ms


def _measured(path: str, holder: Mapping[str, object]) -> Fields:
    for name in ("P", "C"):
        if holder.get(name) is None:
            raise InputError(f"{path}: has no field {name}")
    rows = [[number("P", item) for item in items("P", row)] for row in items("P", holder["P"])]
    close = all(abs(sum(row) - 1) <= _ROUNDING for row in rows)
    return {"P": [[item / sum(row) for item in row] for row in rows] if close else rows, "C": holder["C"]}


def _object(path: str, holder: Mapping[str, object], name: str) -> dict[str, object]:
    value = holder.get(name)
    if not isinstance(value, dict):
        raise InputError(f"{path}: has no object {name}")
    return value
