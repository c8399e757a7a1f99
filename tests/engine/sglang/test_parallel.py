"""A model over two processes: the same tokens, the same refusals of a leak, and no process that outlives another."""
from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.drive import generate
from tests.engine.sglang.pair import CAPACITY, COUNT, PROMPTS
from tests.engine.sglang.test_equality import MODELS, PAIR, Truth, requests, specification
from tests.serve import serve
from tokenrouter.cluster.cluster import Cluster, SubserverDied
from tokenrouter.cluster.placement import plan_capacity
from tokenrouter.cluster.spec import AlgorithmSpec, ClusterSpec, EngineSpec, ModelSpec
from tokenrouter.core import InputError
from tokenrouter.engine.memory import footprint
from tokenrouter.engine.sglang.engine import SglangEngine
from tokenrouter.server.settings import read
from zoo.models import path

with_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs `make sglang-cpu`")
ROOT = Path(__file__).parents[3]
NAMES = ("r2r", "citer", "r_stitch", "speculative", "me")
CONCURRENCY = 4
END_S = 20.0  # more than a process needs to notice another's end, and to end


@contextmanager
def started(module: str, argument: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, argument], cwd=ROOT, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """Rank 0 of tests/engine/sglang/pair.py."""
    with started("tests.engine.sglang.pair", "{}") as rank0:
        yield rank0


def first_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout and process.stderr
    line = process.stdout.readline()
    if not line:
        pytest.fail(process.stderr.read()[-3000:])
    answers: dict[str, Any] = json.loads(line)
    return answers


def gone(pid: int) -> bool:
    """Within END_S."""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@with_sglang
@pytest.mark.timeout(600)
def test_two_ranks_answer_as_transformers_does(process: subprocess.Popen[str]) -> None:
    found = first_line(process)
    model: Any = AutoModelForCausalLM.from_pretrained(path("large"), dtype=torch.float32).eval()
    ids = PROMPTS[2]
    with torch.inference_mode():
        whole = model(torch.tensor([ids]), output_hidden_states=True)
    assert found["tokens"] == generate(model, PROMPTS, COUNT)
    assert found["again"] == found["tokens"][2] and found["hits"] == len(ids) - 1
    assert torch.allclose(torch.tensor(found["logits"]), whole.logits[0, -3:], atol=1e-4)
    assert torch.allclose(torch.tensor(found["hidden"]), whole.hidden_states[-1][0, -3:], atol=1e-4)
    assert torch.equal(torch.tensor(found["embedded"]), model.get_input_embeddings().weight[ids])
    assert found["free"] == CAPACITY
    size = footprint(path("large"), "float32")
    assert found["info"] == [model.num_parameters(), *size]

    follower, = found["followers"]
    process.kill()
    assert gone(follower)


@with_sglang
@pytest.mark.timeout(600)
def test_a_rank_of_another_machine_is_started_by_hand() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = "{}:{}".format(*probe.getsockname())
    server_args = {"nnodes": 2, "dist_init_addr": where}
    follower = {"shard": {"rank": 1, "size": 2, "nodes": 2},
                "options": {"path": str(path("large")), "device": "cpu", "capacity_tokens": CAPACITY,
                            "max_sequences": 4, "server_args": server_args}}
    with (started("tests.engine.sglang.pair", json.dumps(server_args)) as rank0,
          started("tokenrouter.engine.sglang.follower", json.dumps(follower)) as rank1):
        found = first_line(rank0)
        assert found["followers"] == [] and found["again"] == found["tokens"][2]
        rank0.kill()
        assert gone(rank1.pid)


@with_sglang
@pytest.mark.timeout(600)
def test_a_step_ends_with_a_follower(process: subprocess.Popen[str]) -> None:
    follower, = first_line(process)["followers"]
    assert process.stdin and process.stderr
    os.kill(follower, signal.SIGKILL)
    process.stdin.write("5\n")
    process.stdin.flush()
    assert process.wait(END_S) == 1
    assert process.stderr.read().strip().endswith("FollowerDied: rank 1 of the model died: killed by SIGKILL")


@with_sglang
@pytest.mark.timeout(600)
def test_a_divided_model_tells_the_truth() -> None:
    """The large model over two processes; the small one's three heads cannot be divided."""
    torch.set_num_threads(1)
    specs = [specification(name) for name in NAMES]
    jobs = requests(specs)
    spec = ClusterSpec(
        models=[ModelSpec(name=name, path=MODELS[name]) for name in PAIR], algorithms=specs,
        engine=EngineSpec(kind="sglang", capacity_tokens=1024, options={"tp_size": {"large": 2}}))
    with Cluster(spec) as cluster:
        records = serve(cluster.frontend, jobs, CONCURRENCY)
        cluster.frontend.check()
        follower, = followers_of(cluster.pids[1])
        os.kill(follower, signal.SIGKILL)
        with pytest.raises(SubserverDied, match="rank 1 of the model died: killed by SIGKILL"):
            watch_idle(cluster)
    truth = Truth(specs)
    verdicts = [(name, truth.verdict(name, record)) for (name, _, _), record in zip(jobs, records, strict=True)]
    assert not [found for found in verdicts if found[1].kind == "diverged"]
    assert len([found for found in verdicts if found[1].kind == "excused"]) <= 1, verdicts
    handoffs = {name: 0 for name in NAMES}
    for (name, _, _), record in zip(jobs, records, strict=True):
        handoffs[name] += record.handoffs or 0
    assert all(handoffs.values()), handoffs


def watch_idle(cluster: Cluster) -> None:
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        cluster.frontend.poll(0.1)


def followers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"sglang.follower" in Path(f"/proc/{child}/cmdline").read_bytes()]


def cluster_of(tp_size: Any, kind: str = "sglang", **engine: Any) -> ClusterSpec:
    stay = AlgorithmSpec(name="alone", roles=["large"], entry="large", models=[0],
                         routers={"large": {"_target_": "tokenrouter.interface.StayRouter"}})
    return ClusterSpec(models=[ModelSpec(name="large", path=MODELS["large"])], algorithms=[stay],
                       engine=EngineSpec(kind=kind, options={"tp_size": tp_size}, **engine))


@pytest.mark.parametrize(("tp_size", "message"), [
    (0, r"engine.options.tp_size=0: allowed is 1 or more"),
    ({"large": "two"}, r"engine.options.tp_size.large='two': allowed is 1 or more"),
    (3, r"engine.options.tp_size=3: allowed for .*large' with 4 attention heads and 2 key heads is one of 1, 2, 4"),
    (8, r"engine.options.tp_size=8: allowed for .* is one of 1, 2, 4"),
])
def test_a_size_that_cannot_be(tp_size: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cluster(cluster_of(tp_size, capacity_tokens=64))


def test_a_role_that_there_is_not() -> None:
    with pytest.raises(InputError, match=r"engine.options.tp_size.lrage=2: allowed are the roles of models=tiny:"):
        read(["engine=sglang", "engine.options.tp_size={lrage: 2}"])


def test_other_engines_do_not_divide_models() -> None:
    with pytest.raises(InputError, match=r"engine.options.tp_size=2: allowed with engine=sglang"):
        Cluster(cluster_of(2, "torch"))


@pytest.mark.parametrize(("tp_size", "server_args", "message"), [
    (3, {}, "engine.options.tp_size=3: allowed for"),
    (2, {"nnodes": 3}, "server_args.nnodes=3: allowed is a divisor of engine.options.tp_size=2"),
    (2, {"nnodes": 2}, "server_args.dist_init_addr=None: allowed with nnodes=2 is rank 0's HOST:PORT"),
])  # fmt: skip
@with_sglang
def test_the_engine_refuses_before_it_starts_any(tp_size: int, server_args: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SglangEngine(str(path("large")), tp_size=tp_size, server_args=server_args)


def test_room_is_that_of_the_shards() -> None:
    """On a CPU all shards share the memory; each has its own copies of vectors, so that there is a little less."""
    alone, divided = (plan_capacity(cluster_of(size, memory_gb=0.6))[0] for size in (1, 2))
    assert 0.999 * alone < divided < alone
