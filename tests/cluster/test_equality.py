"""The truth: whatever the concurrency, the threshold, the sampling and the room for KV, tokens and their authors are
those of the one-request reference (zoo/reference.py)."""
from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tests.cluster.conftest import VOCAB
from tests.serve import Job, serve
from tests.toy import toy_algorithm
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec
from tokenrouter.core import SamplingParams
from zoo.reference import Reference, compare
from zoo.walk import Record

ENTROPY = AlgorithmSpec(name="entropy", roles=["m0", "m1"], entry="m0", models=[0, 1], routers={
    "m0": {"_target_": "zoo.entropy.router.EntropySmall", "threshold": 0.75},
    "m1": {"_target_": "tokenrouter.interface.ReturnAfterOne"},
})
ALGORITHMS = [toy_algorithm(2, name="pair"), toy_algorithm(3, entry=1, name="three"), ENTROPY]


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    """Every second request greedy, the others sampled with filters; lengths mixed."""
    rng = random.Random(11)
    made = []
    for i in range(48):
        prompt = [rng.randrange(1, VOCAB) for _ in range(rng.choice((1, 3, 17, 40, 75)))]
        filters = {} if i % 2 else {"temperature": rng.choice((0.7, 1.2)), "top_p": rng.choice((1.0, 0.9)),
                                    "top_k": rng.choice((0, 20))}
        sampling = SamplingParams(rng.randrange(2**40), rng.choice((1, 9, 30, 60)), **filters)
        made.append((ALGORITHMS[i % 3].name, prompt, sampling))
    return made


@pytest.fixture(scope="module")
def truth(jobs: list[Job], folders: list[Path]) -> list[Record]:
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
    references = {a.name: Reference(a.build(), [models[m] for m in a.models], VOCAB) for a in ALGORITHMS}
    return [references[name].decode(prompt, sampling) for name, prompt, sampling in jobs]


@pytest.mark.parametrize("batching, capacity_tokens", [
    (BatchingSpec(policy="eager"), 4096), (BatchingSpec(policy="hold"), 4096),
    (BatchingSpec(policy="fixed", B=[1, 3, 3]), 160)], ids=["eager", "hold", "fixed and little room"])
def test_the_runtime_tells_the_truth(make_spec: Callable[..., ClusterSpec], jobs: list[Job], truth: list[Record],
                                     batching: BatchingSpec, capacity_tokens: int):
    spec = make_spec(ALGORITHMS, models=3, capacity_tokens=capacity_tokens, batching=batching)
    verdicts: Counter[str] = Counter()
    with Cluster(spec) as cluster:
        for concurrency in (1, 4, 16):
            for got, true in zip(serve(cluster.frontend, jobs, concurrency), truth, strict=True):
                verdict = compare(got, true)
                assert verdict.kind != "diverged", (concurrency, verdict)
                verdicts[verdict.kind] += 1
        cluster.frontend.check()
        stats = cluster.frontend.stats()
    assert verdicts["equal"] == 3 * len(jobs), "random weights leave wide margins: nothing is to be excused"
    assert all(report["timeouts"] == 0 for report in stats)
    taken = sum(report["evictions"] + report["preemptions"] for report in stats)
    assert (taken > 0) == (capacity_tokens < 4096), "a small pool must force evictions, a large one none"


@pytest.mark.parametrize("policy", ["step_sync", "model_sync", "slo"])
def test_every_system_writes_the_same(make_spec: Callable[..., ClusterSpec], jobs: list[Job], truth: list[Record],
                                      policy: Any):
    mine = [(job, true) for job, true in zip(jobs, truth, strict=True) if job[0] == "three"]
    with Cluster(make_spec([ALGORITHMS[1]], models=3, batching=BatchingSpec(policy=policy))) as cluster:
        for got, (_, true) in zip(serve(cluster.frontend, [job for job, _ in mine], 6), mine, strict=True):
            assert compare(got, true).kind == "equal"
        cluster.frontend.check()
        assert all(report["timeouts"] == 0 and report["steps"] > 0 for report in cluster.frontend.stats())
