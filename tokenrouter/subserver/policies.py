"""The launch policies by name, and the replay of a launch log."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tokenrouter.cluster.spec import BatchingSpec
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.controller import Bounded, Planned, Planner
from tokenrouter.subserver.hold import Hold
from tokenrouter.subserver.policy import Asked, FixedThreshold, Heard, LaunchPolicy
from tokenrouter.subserver.synchronous import ModelSync, StepSync

PLANNED: dict[str, type[Planned]] = {"optimal": Planned, "hold": Hold, "slo": Bounded, "model_sync": ModelSync}
PLAIN: dict[str, type[LaunchPolicy]] = {"eager": LaunchPolicy, "fixed": FixedThreshold, "step_sync": StepSync}


def make_policy(spec: BatchingSpec, index: int, planner: Callable[[], Planner | None] = lambda: None) -> LaunchPolicy:
    """The policy of subserver `index`. `planner` is called where plans are to be made."""
    if spec.policy in PLANNED:
        return PLANNED[spec.policy](spec, index, planner())
    return PLAIN[spec.policy](spec, index)


class _Nobody:
    def post(self, destination: int, message: m.Message) -> None:
        """A policy that is only replayed tells nobody anything."""


def replay(spec: BatchingSpec, index: int, models: Sequence[Sequence[int]],
           log: Iterable[Asked | Heard]) -> list[tuple[Asked, bool]]:
    """Each logged decision of a policy that keeps no count of its own steps (all but the synchronous ones), and
    whether a fresh policy that is told the same decides the same."""
    policy = make_policy(spec, index)
    policy.bind(_Nobody(), models)
    found = []
    for entry in log:
        if isinstance(entry, Heard):
            policy.hear(entry.sender, entry.message, entry.now)
        else:
            found.append((entry, policy.decide(entry, entry.now) is entry.verdict))
    return found
