"""Real processes: that they are autonomous, that nothing outlives a run, and that a death is heard of."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.cluster.conftest import VOCAB
from tests.toy import toy_algorithm
from tokenrouter.cluster.cluster import Cluster, SubserverDied
from tokenrouter.cluster.spec import AlgorithmSpec, ClusterSpec
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.interface import BaseRouter
from tokenrouter.server.frontend import EndEvent, Frontend, TokenEvent

MakeSpec = Callable[..., ClusterSpec]


class LeaveIfPromptBegins(BaseRouter):
    """Leaves at once where the prompt begins with 1; others stay for good."""

    def route(self, result):  # type: ignore[no-untyped-def]
        return result.next_token_ids.new_tensor([int(v.origin_input_ids[0] == 1) for v in result.requests])


SPLIT = AlgorithmSpec(name="split", roles=["m0", "m1"], entry="m0", models=[0, 1], routers={
    "m0": {"_target_": "tests.cluster.test_cluster.LeaveIfPromptBegins"},
    "m1": {"_target_": "tokenrouter.interface.StayRouter"},
})


def gather(frontend: Frontend, until: Callable[[], bool], seconds: float = 60.0) -> list[TokenEvent | EndEvent]:
    events: list[TokenEvent | EndEvent] = []
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        events += frontend.poll(0.05)
    return events


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module", params=["ipc", "tcp"])
def cluster(request: pytest.FixtureRequest, make_spec: MakeSpec) -> Iterator[Cluster]:
    """Three models, two algorithms at once; every test must leave it idle."""
    spec = make_spec([toy_algorithm(3), SPLIT], models=3, transport=request.param)
    with Cluster(spec) as started:
        yield started
    assert all(gone(pid, 0.1) for pid in started.pids)


def test_requests_run_to_their_end_and_leave_nothing(cluster: Cluster):
    frontend = cluster.frontend
    frontend.reset_stats()
    rids = [frontend.submit([1 + i, 2, 3], SamplingParams(i, 30, ignore_eos=True), "toy") for i in range(6)]
    events = gather(frontend, lambda: not frontend.num_open)
    ends = {e.rid: e for e in events if isinstance(e, EndEvent)}
    assert set(ends) == set(rids)
    assert all(end.num_output == 30 and end.reason == "length" for end in ends.values())
    for rid in rids:
        tokens = [e for e in events if isinstance(e, TokenEvent) and e.rid == rid]
        assert [e.position for e in tokens] == list(range(30))
        assert {e.role for e in tokens} > {0}, "the case must visit several models"
    frontend.check()
    stats = frontend.stats()
    assert sum(sum(row) for s in stats for row in s["commits"].values()) == 180
    told, deadline = frontend.glance(), time.monotonic() + 20
    while told is None and time.monotonic() < deadline:
        gather(frontend, lambda: False, 0.2)
        told = frontend.glance()
    assert [set(s) for s in told or []] == [{"batch_size", "threshold_B"}] * 3
    assert all(s["timeouts"] == 0 and 0 < s["compute_s"] <= s["busy_s"] <= s["duration_s"] for s in stats)


def test_the_small_model_goes_on_while_the_large_one_stands_still(cluster: Cluster):
    frontend, large = cluster.frontend, cluster.pids[1]
    os.kill(large, signal.SIGSTOP)
    routed = frontend.submit([1, 2, 3], SamplingParams(0, 20, ignore_eos=True), "split")
    staying = [frontend.submit([2, i], SamplingParams(0, 200, ignore_eos=True), "split") for i in range(3)]
    events = gather(frontend, lambda: frontend.num_open == 1)
    ended = {e.rid for e in events if isinstance(e, EndEvent)}
    assert ended == set(staying), "requests that are not routed must not wait for the large model"
    assert not any(e.rid == routed for e in events)
    os.kill(large, signal.SIGCONT)
    events = gather(frontend, lambda: not frontend.num_open)
    assert [e.rid for e in events if isinstance(e, EndEvent)] == [routed]
    assert {e.role for e in events if isinstance(e, TokenEvent)} == {1}
    frontend.check()


def test_an_abort_frees_a_request_that_is_away(cluster: Cluster):
    frontend, large = cluster.frontend, cluster.pids[1]
    os.kill(large, signal.SIGSTOP)
    rid = frontend.submit([1, 2, 3], SamplingParams(0, 400, ignore_eos=True), "split")
    gather(frontend, lambda: False, 0.3)
    frontend.abort(rid)
    events = gather(frontend, lambda: not frontend.num_open, 10.0)
    assert [(type(e), e.rid) for e in events] == [(EndEvent, rid)]
    os.kill(large, signal.SIGCONT)
    frontend.check()


def test_what_can_never_be_served_is_refused_at_the_door(cluster: Cluster):
    good = SamplingParams(0, 10)
    for prompt, sampling, algorithm, params, message in (
        ([], good, "toy", {}, "prompt"),
        ([1] * 510, good, "toy", {}, "allowed is a sum of at most 512"),
        ([VOCAB], good, "toy", {}, f"allowed is 0 to {VOCAB - 1}"),
        ([1], SamplingParams(0, 0), "toy", {}, "max_tokens=0"),
        ([1], good, "unknown", {}, "algorithm='unknown': allowed is one of"),
        ([1], good, "toy", {"tau": 1}, "params.tau"),
    ):
        with pytest.raises(InputError, match=message):
            cluster.frontend.submit(prompt, sampling, algorithm, params)
    assert cluster.frontend.num_open == 0


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_is_heard_of_within_five_seconds(make_spec: MakeSpec, victim: int):
    died = pytest.raises(SubserverDied, match=rf"subserver {victim} \(m{victim}\) died: killed by SIGKILL")
    with died, Cluster(make_spec()) as cluster:
        pids = cluster.pids
        cluster.frontend.submit([1, 2], SamplingParams(0, 400, ignore_eos=True), "toy")
        os.kill(pids[victim], signal.SIGKILL)
        gather(cluster.frontend, lambda: False, 5.0)
    assert all(gone(pid, 0.1) for pid in pids)


PARENT = """
import signal, sys, msgspec
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import ClusterSpec
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    with Cluster(msgspec.json.decode(sys.argv[1], type=ClusterSpec)) as cluster:
        print(*cluster.pids, flush=True)
        while True:
            cluster.frontend.poll(0.1)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_orphan_stays_behind(make_spec: MakeSpec, sent: signal.Signals):
    spec = msgspec.json.encode(make_spec()).decode()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, spec], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, start_new_session=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if sent == signal.SIGINT:
        os.killpg(parent.pid, sent)  # what Ctrl-C does: the whole group
    else:
        parent.send_signal(sent)
    parent.wait(10)
    assert all(gone(pid, 5.0) for pid in pids)


def test_a_model_that_cannot_be_loaded_is_named(make_spec: MakeSpec, tmp_path):
    spec = make_spec()
    spec.models[1].path = str(tmp_path / "nothing")
    with pytest.raises(InputError, match="nothing"), Cluster(spec):
        pass
