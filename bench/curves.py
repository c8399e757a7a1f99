"""How a run went over time, one row for each of equal parts of it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.records import Trace

_LEAST, _MOST = 10, 60  # rows; about one a second between these


def curves(trace: Trace, reports: Sequence[Mapping[str, Any]], roles: Sequence[str]) -> pd.DataFrame:
    """By the second at which each part ends: tokens_per_s, and active, the requests under way in its middle; for each
    subserver that reported the means of its steps there, batch_size/<role> and threshold_B/<role> (NaN: no step).
    """
    duration = trace.ended - trace.began
    edges = np.linspace(0.0, duration, min(_MOST, max(_LEAST, int(duration))) + 1)
    middles, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    chunks = np.array([chunk for record in trace.records for chunk in record.chunks], float).reshape(-1, 2)
    spans = np.array([(record.start, record.end) for record in trace.records], float).reshape(-1, 2) - trace.began
    found = pd.DataFrame({
        "tokens_per_s": np.histogram(chunks[:, 0] - trace.began, edges, weights=chunks[:, 1])[0] / width,
        "active": [int(((spans[:, 0] <= at) & ~(spans[:, 1] <= at)).sum()) for at in middles],
    }, index=pd.Index(edges[1:], name="elapsed_s"))
    for role, report in zip(roles, reports, strict=False):
        at = np.array(report["start_s"]) - trace.began
        steps = np.histogram(at, edges)[0]
        for name, field in (("batch_size", "batch_size"), ("threshold_B", "thresholds")):
            total = np.histogram(at, edges, weights=np.array(report[field], float))[0]
            found[f"{name}/{role}"] = np.divide(total, steps, out=np.full(len(steps), np.nan), where=steps > 0)
    return found


def glances(service: Any, roles: Sequence[str]) -> dict[str, float]:
    """While the run goes on: batch_size/<role> and threshold_B/<role> of the last steps, if the service tells them."""
    told = service.glance() if hasattr(service, "glance") else None
    return {f"{name}/{role}": value for role, report in zip(roles, told or [], strict=False)
            for name, value in report.items() if value is not None}
