"""What one subserver measures of itself."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

_RECENT_STEPS = 100


@dataclass
class Stats:
    """Since the last reset. Times in milliseconds where the name says so, else seconds; `since` and `start_s` are
    perf_counter's."""

    since: float = field(default_factory=time.perf_counter)
    compute_s: float = 0.0
    step_ms: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    batch_size: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    thresholds: list[int] = field(default_factory=list)
    admission_ms: list[float] = field(default_factory=list)
    transitions: dict[str, list[int]] = field(default_factory=dict)
    commits: dict[str, list[int]] = field(default_factory=dict)

    def step(self, start: float, end: float, compute_s: float, batch_size: int, tokens: int, threshold: int) -> None:
        """One loop turn that ran the model: from assembly to the last message sent. `threshold`: B in force then."""
        self.step_ms.append((end - start) * 1e3)
        self.start_s.append(start)
        self.batch_size.append(batch_size)
        self.tokens.append(tokens)
        self.thresholds.append(threshold)
        self.compute_s += compute_s

    def transition(self, algorithm: str, roles: int, role: int, committed: int) -> None:
        """A routed row went to `role` (its own role: it stayed) and committed that many tokens."""
        self.transitions.setdefault(algorithm, [0] * roles)[role] += 1
        self.commits.setdefault(algorithm, [0] * roles)[role] += committed

    def recent(self) -> dict[str, Any]:
        """The mean batch size of the last steps; None before the first."""
        sizes = self.batch_size[-_RECENT_STEPS:]
        return {"batch_size": sum(sizes) / len(sizes) if sizes else None}

    def report(self) -> dict[str, Any]:
        return {
            "duration_s": time.perf_counter() - self.since,
            "steps": len(self.step_ms),
            "busy_s": sum(self.step_ms) / 1e3,
            "compute_s": self.compute_s,
            **{name: getattr(self, name) for name in (
                "step_ms", "start_s", "batch_size", "tokens", "thresholds", "admission_ms", "transitions", "commits")},
        }
