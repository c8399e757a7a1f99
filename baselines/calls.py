"""What an executor measures of its calls to a model."""
from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from baselines.host import Reply
from tokenrouter.subserver.stats import Stats


@dataclass
class Calls(Stats):
    """As a subserver's; a step is a call with its way there and back. `parts`: seconds of all calls by part."""

    parts: Counter[str] = field(default_factory=Counter)

    def call(self, start: float, reply: Reply, rows: int) -> None:
        end = time.perf_counter()
        self.step(start, end, reply.parts["inference"], rows, reply.tokens, 1)
        self.parts.update(reply.parts)
        self.parts["others"] += max(0.0, end - start - sum(reply.parts.values()))

    def report(self) -> dict[str, Any]:
        """`breakdown_ms`: mean milliseconds of a call by part; `others` is transport, waiting and bookkeeping."""
        steps = max(1, len(self.step_ms))
        return super().report() | {"breakdown_ms": {part: 1e3 * total / steps for part, total in self.parts.items()}}
