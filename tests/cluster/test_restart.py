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
from tokenrouter.server.frontend import EndEvent, Event, Frontend, TokenEvent
from tokenrouter.subserver import messages as m
from zoo.walk import Record

ENTROPY = AlgorithmSpec(name="entropy", roles=["m0", "m1"], entry="m0", models=[0, 1], routers={
    "m0": {"_target_": "zoo.entropy.router.EntropySmall", "threshold": 0.75},
    "m1": {"_target_": "tokenrouter.interface.ReturnAfterOne"},
})


SPECULATIVE = AlgorithmSpec(name="speculative", roles=["m0", "m1"], entry="m0", models=[0, 1], routers={
    "m0": {"_target_": "zoo.speculative.router.SpeculativeSmall"},
    "m1": {"_target_": "zoo.speculative.router.SpeculativeLarge"},
})


@pytest.fixture(scope="module")
def cluster(make_spec: Callable[..., ClusterSpec]) -> Iterator[Cluster]:
    with Cluster(make_spec([toy_algorithm(2), ENTROPY, SPECULATIVE]), on_death="restart", max_restarts=7) as started:
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
    """A front end that does something once that many events have been seen."""

    def __init__(self, frontend: Frontend, kill: Callable[[], None], after: int) -> None:
        self._frontend, self._kill, self._left = frontend, kill, after
        self.submit = frontend.submit

    def poll(self, timeout_s: float) -> list[Event]:
        events = self._frontend.poll(timeout_s)
        if self._left > 0 >= self._left - len(events):
            self._kill()
        self._left -= len(events)
        return events


@pytest.mark.parametrize("victim, after, fails", [(1, 300, False), (0, 700, False), (0, 1, False), (1, 200, True)])
def test_requests_survive_the_death_of_a_subserver(cluster: Cluster, jobs: list[Job], undisturbed: list[Record],
                                                   victim: int, after: int, fails: bool):
    pid, before = cluster.pids[victim], cluster.restarts

    def kill() -> None:
        if not fails:
            os.kill(pid, signal.SIGKILL)
            return
        mailbox = cluster.frontend._mailbox  # of a message that no subserver gets it makes an exception
        mailbox.post(victim, m.Tokens("r", 0, [], 0))
        mailbox.flush()

    records = serve(Killer(cluster.frontend, kill, after), jobs, 16)  # type: ignore[arg-type]
    assert cluster.restarts == before + 1 and cluster.pids[victim] != pid
    for got, true in zip(records, undisturbed, strict=True):
        assert (got.token_ids, got.token_models) == (true.token_ids, true.token_models)
        assert got.finish_reason == true.finish_reason == "length" and len(set(got.token_models)) == 2
    cluster.frontend.check()


def test_a_token_that_comes_out_otherwise_costs_no_request(
    cluster: Cluster, jobs: list[Job], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    """As the last one may where it was a near tie: what clients have been given stays, and is gone on from."""
    frontend, lost = cluster.frontend, cluster.frontend.lost

    def other_tokens_were_given(index: int) -> None:
        for request in frontend._open.values():
            if request.token_ids:
                request.token_ids[-1] = 1 + request.token_ids[-1] % (VOCAB - 1)
        lost(index)

    monkeypatch.setattr(frontend, "lost", other_tokens_were_given)
    records = serve(Killer(frontend, lambda: os.kill(cluster.pids[0], signal.SIGKILL), 400), jobs, 16)  # type: ignore[arg-type]
    assert [(len(record.token_ids), record.finish_reason) for record in records] == [(120, "length")] * len(jobs)
    assert caplog.text.count("came out differently") > 3
    frontend.check()


def test_sampled_drafts_go_on_where_they_were(cluster: Cluster):
    """The same tokens only by chance, as other drafts are made; none that were given out are taken back."""
    jobs = [("speculative", [i + 1, 2, 3], SamplingParams(i, 60, temperature=0.9, ignore_eos=True)) for i in range(8)]

    def kill() -> None:
        os.kill(cluster.pids[1], signal.SIGKILL)

    records = serve(Killer(cluster.frontend, kill, 100), jobs, 8)  # type: ignore[arg-type]
    assert [(len(record.token_ids), record.finish_reason) for record in records] == [(60, "length")] * 8
    cluster.frontend.check()


def test_a_request_that_is_given_up_as_its_entry_dies_leaves_nothing_behind(cluster: Cluster):
    frontend, authors, ended = cluster.frontend, set[int](), False
    rid = frontend.submit([1, 2], SamplingParams(0, 400, ignore_eos=True), "toy")
    while len(authors) < 2:  # both models know it
        authors |= {event.role for event in frontend.poll(0.05) if isinstance(event, TokenEvent)}
    os.kill(cluster.pids[0], signal.SIGKILL)
    frontend.abort(rid)
    for _ in range(600):
        ended = ended or any(isinstance(event, EndEvent) for event in frontend.poll(0.05))
        if ended and not frontend.down:
            break
    assert ended
    frontend.check()


def test_when_it_dies_too_often_the_cluster_ends(cluster: Cluster):
    """Runs last: it uses up the restarts."""
    frontend = cluster.frontend
    rid = frontend.submit([1, 2], SamplingParams(0, 400, ignore_eos=True), "toy")
    os.kill(cluster.pids[1], signal.SIGKILL)
    with pytest.raises(SubserverDied, match="died: killed by SIGKILL"):
        for _ in range(600):
            assert not any(isinstance(event, EndEvent) and event.rid == rid for event in frontend.poll(0.05))
