"""Systems that the tests of the throughput model share."""
from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tokenrouter.throughput.spec import Spec

# The paper's R2R setting (section D.4).
R2R: dict[str, Any] = {
    "N": 4, "P": [[0.65, 0.35], [1.0, 0.0]], "C": [[1, 0], [1, 0]], "L_ms": [6.0, 27.9], "delta_ms": 0.1}


def r2r(N: int, **changes: object) -> Spec:
    return Spec.parse(R2R | {"N": N} | changes)


@st.composite
def systems(draw: st.DrawFn, most_requests: int = 4) -> Spec:
    """Small systems of two or three models with batch-dependent latencies, a feasible B, and the hold rule on some."""
    models = draw(st.integers(2, 3))
    requests = draw(st.integers(1, most_requests))
    weights = st.lists(st.integers(1, 9), min_size=models, max_size=models)
    P = [[w / sum(row) for w in row] for row in (draw(weights) for _ in range(models))]
    C = [draw(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=models, max_size=models)) for _ in range(models)]
    C[0][0] = 1.0
    latencies = [draw(st.lists(st.integers(1, 7), min_size=1, max_size=requests)) for _ in range(models)]
    slack, B = requests - 1, []
    for _ in range(models):
        extra = draw(st.integers(0, slack))
        slack -= extra
        B.append(1 + extra)
    hold = [i for i in range(models) if draw(st.booleans())]
    return Spec.parse({"N": requests, "P": P, "C": C, "L_ms": latencies, "delta_ms": 1.0, "B": B, "hold": hold})
