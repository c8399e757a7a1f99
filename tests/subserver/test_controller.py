"""Thresholds follow what changes, in every subserver, without a coordinator. Time is the model's, not the clock's."""
from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.throughput.systems import r2r
from tokenrouter.cluster.spec import BatchingSpec
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.controller import Planned
from tokenrouter.subserver.planner import Question, best
from tokenrouter.subserver.policies import make_policy
from tokenrouter.subserver.policy import Step
from tokenrouter.throughput.search import evaluate, search
from tokenrouter.throughput.spec import Spec


class Inline:
    """The real search, whose answer comes three steps later."""

    def __init__(self) -> None:
        self.free, self.asked, self._left = True, 0, 0

    def ask(self, active: int, figures: Sequence[m.Figures | None], start: Sequence[int] | None) -> None:
        self._B = best("optimal", Question(active, list(figures), None if start is None else tuple(start)))
        self.free, self._left = False, 3
        self.asked += 1

    def answer(self) -> tuple[int, ...] | None:
        self._left -= 1
        if self.free or self._left > 0:
            return None
        self.free = True
        return self._B


class System:
    """Two models that make steps of three requests all the time, of which model 0 hands over a share p; `algorithms`:
    which models each has, of which more than these two do nothing."""

    def __init__(self, algorithms: Sequence[Sequence[int]] = ((0, 1),)) -> None:
        self.rng, self.now, self.due = random.Random(0), 0.0, 0.0
        count = 1 + max(model for models in algorithms for model in models)
        self.policies = [make_policy(BatchingSpec(policy="optimal"), i, Inline) for i in range(count)]
        for policy in self.policies:
            policy.bind(self, algorithms)

    def post(self, destination: int, message: m.Message) -> None:
        sender = 1 - destination if destination < 2 else 0
        self.policies[destination].receive(sender, message, self.now)  # type: ignore[arg-type]

    def run(self, steps: int, p: float, latencies: tuple[float, float], active: int, jitter: float = 0.02) -> None:
        """Steps of model 0, whose times vary by the share `jitter`."""
        for _ in range(steps):
            self.now += latencies[0] / 1e3
            moves = [(int(self.rng.random() < p), 1) for _ in range(3)]
            noise = self.rng.uniform(1 - jitter, 1 + jitter)
            self.policies[0].learn(Step(3, moves, latencies[0] * noise, True, active), self.now)
            while self.due <= self.now:
                self.due += latencies[1] / 1e3
                self.policies[1].learn(Step(3, [(0, 1)] * 3, latencies[1] * noise, True, active), self.now)

    @property
    def B(self) -> set[tuple[int, ...]]:
        plans = [policy.controller.plan for policy in self.policies if isinstance(policy, Planned)]
        return {plan.B for plan in plans if plan}

    @property
    def asked(self) -> int:
        return sum(policy.controller.planner.asked for policy in self.policies)  # type: ignore[attr-defined]


def spec(p: float, latencies: tuple[float, float], active: int) -> Spec:
    return r2r(active, P=[[1 - p, p], [1, 0]], L_ms=list(latencies))


@pytest.mark.parametrize(("p", "latencies"), [(0.08, (6.0, 27.9)), (0.35, (6.0, 9.0)), (0.35, (20.0, 27.9))])
def test_B_follows_P_and_L_within_200_steps(p: float, latencies: tuple[float, float]):
    """What is lost by the B in force, of what the best B would give."""

    def loss(p: float, latencies: tuple[float, float]) -> float:
        assert len(system.B) == 1, "both are under one plan"
        now = spec(p, latencies, 8)
        return 1 - evaluate(now, min(system.B)).throughput / search(now).best.throughput

    system = System()
    system.run(300, 0.35, (6.0, 27.9), 8)
    assert loss(0.35, (6.0, 27.9)) < 0.01 and loss(p, latencies) > 0.03
    system.run(200, p, latencies, 8)
    assert loss(p, latencies) < 0.01


@pytest.mark.parametrize(("p", "jitter"), [(0.35, 0.02), (0.35, 0.3), (0.03, 0.3)])
def test_a_steady_system_is_left_in_peace(p: float, jitter: float):
    """Chance alone, such as that of rare handoffs and uneven steps, is no reason for a new plan."""
    system = System()
    system.run(600, p, (6.0, 27.9), 8, jitter)
    asked, B = system.asked, system.B
    for _ in range(10):
        system.run(200, p, (6.0, 27.9), 8, jitter)
        B |= system.B
    assert asked >= 1 and system.asked - asked <= 6
    assert len(B) <= 2


def test_a_model_without_requests_keeps_nobody_from_a_plan():
    system = System([[0, 1], [0, 2]])
    system.run(300, 0.35, (6.0, 27.9), 8)
    [B] = system.B
    assert B == (1, 5, 1)


def test_models_that_share_an_algorithm_agree_on_its_thresholds_whatever_else_they_have():
    """Eq. 22 for each algorithm: with B from a plan for eight, some of its four requests can always go on."""
    system = System([[0, 1], [0, 2]])
    system.run(300, 0.35, (6.0, 27.9), 8)
    for others in range(0, 40):
        B = [system.policies[0].threshold({0: 4, 1: others}), system.policies[1].threshold({0: 4})]
        assert sum(b - 1 for b in B) < 4


def test_the_count_counts_at_once():
    system = System()
    system.run(300, 0.35, (6.0, 27.9), 8)
    counts = (8, 7, 4, 3, 2, 1)
    B = [system.policies[1].threshold({0: active}) for active in counts]
    assert sorted(B, reverse=True) == B and B[-1] == 1 and all(b <= n for b, n in zip(B, counts, strict=True))
