"""Faults on the wire: whatever is lost, doubled or overtaken, no text is ever wrong; a loss alone can stop one."""
from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy import ToyCluster, toy_algorithm, toy_reference
from tokenrouter.core import FinishReason
from tokenrouter.subserver import messages as m
from zoo.harness import Wire


class FaultyWire(Wire):
    """Each envelope is lost, delivered twice, or overtaken by a later one, with these probabilities."""

    def __init__(self, lost: float, doubled: float, overtaken: float) -> None:
        super().__init__()
        self.lost, self.doubled, self.overtaken = lost, doubled, overtaken
        self.faults = 0

    def deliver(self, rng: random.Random, inbox: dict[int, list[bytes]]) -> None:
        ready = sorted(pair for pair, queue in self.queues.items() if queue)
        if not ready:
            return
        queue = self.queues[pair := rng.choice(ready)]
        if pair[0] == m.FRONT_END:  # a client's own messages: what is lost there was never asked for
            inbox[pair[1]].append(queue.popleft())
            return
        position = rng.randrange(len(queue)) if rng.random() < self.overtaken else 0
        data = queue[position]
        del queue[position]
        copies = 0 if rng.random() < self.lost else 2 if rng.random() < self.doubled else 1
        self.faults += (copies != 1) + (position > 0)
        inbox[pair[1]] += [data] * copies


def run(seed: int, roles: int, wire: FaultyWire, turns: int) -> tuple[ToyCluster, list[tuple[str, list[int], int]]]:
    cluster = ToyCluster([toy_algorithm(roles)], models=roles, pages=64, seed=seed)
    wire.queues, wire.sent = cluster.wire.queues, cluster.wire.sent
    cluster.wire = wire
    for subserver in cluster.subservers:
        subserver.mailbox._wire = wire  # type: ignore[attr-defined]
    cluster.frontend._mailbox._wire = wire  # type: ignore[attr-defined]
    rng = random.Random(seed)
    jobs = []
    for _ in range(6):
        prompt, length = [rng.randrange(1, 64) for _ in range(rng.randint(1, 12))], rng.randint(1, 30)
        jobs.append((cluster.submit(prompt, length), prompt, length))
    for _ in range(turns):
        cluster.turn()
    return cluster, jobs


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), roles=st.integers(2, 3), lost=st.sampled_from([0.0, 0.02, 0.1]),
       doubled=st.sampled_from([0.0, 0.2]), overtaken=st.sampled_from([0.0, 0.3]))
def test_no_fault_corrupts_a_text(seed: int, roles: int, lost: float, doubled: float, overtaken: float):
    cluster, jobs = run(seed, roles, FaultyWire(lost, doubled, overtaken), turns=4000)
    for rid, prompt, length in jobs:
        tokens, authors, reason = cluster.output(rid)
        expected = toy_reference(toy_algorithm(roles), prompt, length)
        assert tokens == expected[0][: len(tokens)] and authors == expected[1][: len(tokens)]
        if reason is not None:
            assert (tokens, authors, reason) == expected


@pytest.mark.parametrize("seed", range(8))
def test_doubled_messages_stop_nothing(seed: int):
    cluster, jobs = run(seed, 2, FaultyWire(0.0, 0.3, 0.0), turns=0)
    cluster.run()
    for rid, prompt, length in jobs:
        assert cluster.output(rid) == toy_reference(toy_algorithm(2), prompt, length)
    assert cluster.wire.faults > 0  # type: ignore[attr-defined]
    cluster.check_idle()


@pytest.mark.parametrize("seed", range(8))
def test_what_hangs_on_a_lost_message_can_be_aborted(seed: int):
    cluster, _ = run(seed, 2, FaultyWire(0.2, 0.0, 0.0), turns=4000)
    hanging = list(cluster.frontend._open)
    assert hanging, "the case must lose something"
    cluster.wire.lost = 0.0  # type: ignore[attr-defined]
    for rid in hanging:
        cluster.frontend.abort(rid, FinishReason.ABORT)
    cluster.run()
    assert all(cluster.output(rid)[2] == "abort" for rid in hanging)
    assert not cluster.subservers[0].scheduler.requests
