"""A subserver that is killed is started anew, and its requests end as if nothing had happened."""
from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.conftest import VOCAB
from tests.serve import Job, serve
from tests.toy import toy_algorithm
from tokenrouter.cluster.cluster import Cluster, SubserverDied
from tokenrouter.cluster.spec import AlgorithmSpec, ClusterSpec
from tokenrouter.core import SamplingParams
from tokenrouter.server.frontend import EndEvent, Event, Frontend
from zoo.walk import Record

ENTROPY = AlgorithmSpec(name="entropy", roles=["m0", "m1"], entry="m0", models=[0, 1], routers={
    "m0": {"_target_": "zoo.entropy.router.EntropySmall", "threshold": 0.75},
    "m1": {"_target_": "tokenrouter.interface.ReturnAfterOne"},
})


@pytest.fixture(scope="module")
def cluster(make_spec: Callable[..., ClusterSpec]) -> Iterator[Cluster]:
    with Cluster(make_spec([toy_algorithm(2), ENTROPY]), on_death="restart", max_restarts=3) as started:
        yield started


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    rng = random.Random(3)
    return [(("toy", "entropy")[i % 2], [rng.randrange(1, VOCAB) for _ in range(rng.randint(1, 30))],
             SamplingParams(i, 120, temperature=(0.0, 0.9)[i // 2 % 2], ignore_eos=True)) for i in range(16)]


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, jobs: list[Job]) -> list[Record]:
    return serve(cluster.frontend, jobs, 16)


class Killer:
    """A front end that kills a subserver once that many events have been seen."""

    def __init__(self, frontend: Frontend, pid: int, after: int) -> None:
        self._frontend, self._pid, self._left = frontend, pid, after
        self.submit = frontend.submit

    def poll(self, timeout_s: float) -> list[Event]:
        events = self._frontend.poll(timeout_s)
        if self._left > 0 >= self._left - len(events):
            os.kill(self._pid, signal.SIGKILL)
        self._left -= len(events)
        return events


@pytest.mark.parametrize("victim, after", [(1, 300), (0, 700), (0, 1)])
def test_requests_survive_the_death_of_a_subserver(cluster: Cluster, jobs: list[Job], undisturbed: list[Record],
                                                   victim: int, after: int):
    pid, before = cluster.pids[victim], cluster.restarts
    records = serve(Killer(cluster.frontend, pid, after), jobs, 16)  # type: ignore[arg-type]
    assert cluster.restarts == before + 1 and cluster.pids[victim] != pid
    for got, true in zip(records, undisturbed, strict=True):
        assert (got.token_ids, got.token_models) == (true.token_ids, true.token_models)
        assert got.finish_reason == true.finish_reason == "length" and len(set(got.token_models)) == 2
    cluster.frontend.check()


def test_when_it_dies_too_often_the_cluster_ends(cluster: Cluster):
    """Runs last: it uses up the restarts."""
    frontend = cluster.frontend
    rid = frontend.submit([1, 2], SamplingParams(0, 400, ignore_eos=True), "toy")
    os.kill(cluster.pids[1], signal.SIGKILL)
    with pytest.raises(SubserverDied, match="died: killed by SIGKILL"):
        for _ in range(600):
            assert not any(isinstance(event, EndEvent) and event.rid == rid for event in frontend.poll(0.05))
