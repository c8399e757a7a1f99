"""The truth on engine=sglang: the embedded pair's tokens and their authors are the reference's, for every algorithm."""
from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tests.serve import Job, serve
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec, EngineSpec, ModelSpec
from tokenrouter.core import SamplingParams
from zoo.models import path
from zoo.reference import Reference
from zoo.tasks.arithmetic import problems
from zoo.walk import Record

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs `make sglang-cpu`")

ROOT = Path(__file__).parents[3]
PAIR = ("small", "large")
ALGORITHMS = ("r2r", "entropy", "citer", "r_stitch", "random", "speculative")
OTHER = {"me": {"roles": {role: {"_target_": "zoo.me.router.MERouter", "weights": [0.6, 0.4]} for role in PAIR},
                "entry": {"_target_": "zoo.me.router.MEEntry", "weights": [0.6, 0.4]}}}


def algorithms() -> list[AlgorithmSpec]:
    found = []
    for name in ALGORITHMS:
        file = ROOT / "conf" / "algo" / f"{name}.yaml"
        if not file.exists():
            continue
        algo = OmegaConf.to_container(OmegaConf.create({"algo": OmegaConf.load(file)}), resolve=True)["algo"]
        if "weights" in algo and not (ROOT / algo["weights"]).exists():
            continue
        found.append((name, algo))
    return [AlgorithmSpec(name=name, roles=list(PAIR), routers=algo["roles"], entry=algo["entry"], models=[0, 1])
            for name, algo in (*found, *OTHER.items())]


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    return make_jobs()


def make_jobs() -> list[Job]:
    """Four for each algorithm, three of them greedy."""
    tokenizer = AutoTokenizer.from_pretrained(path("small"))
    names = [spec.name for spec in algorithms()]
    made = []
    for i, problem in enumerate(problems("test", 4 * len(names), 5)):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], add_generation_prompt=True, return_dict=False)
        sampling = SamplingParams(i, 120, temperature=1.0 if i // len(names) == 3 else 0.0, top_p=0.95)
        made.append((names[i % len(names)], prompt, sampling))
    return made


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.timeout(600)
def test_every_algorithm_tells_the_truth(prefix_cache: bool, jobs: list[Job]) -> None:
    torch.set_num_threads(1)
    specs = algorithms()
    spec = ClusterSpec(
        models=[ModelSpec(name=role, path=str(path(role))) for role in PAIR], algorithms=specs,
        batching=BatchingSpec(policy="fixed", B=[1, 2]),
        engine=EngineSpec(kind="sglang", capacity_tokens=1024, options={"prefix_cache": prefix_cache}))
    served: dict[str, list[Record]] = {algorithm.name: [] for algorithm in specs}
    with Cluster(spec) as cluster:
        for concurrency in (1, 4, 16):
            for (name, _, _), record in zip(jobs, serve(cluster.frontend, jobs, concurrency), strict=True):
                served[name].append(record)
        cluster.frontend.check()
        reports = cluster.frontend.stats()
    assert all(report["timeouts"] == 0 for report in reports)
    assert sum(report["evictions"] + report["preemptions"] for report in reports) > 0  # 16 do not fit at once
    hits = sum(report["engine"]["prefix_hit_tokens"] for report in reports)
    assert (hits > 0) == prefix_cache
    verdicts: Counter[str] = Counter()
    for algorithm in specs:
        reference = Reference.load(algorithm.build(), [model.path for model in spec.models])
        for record in served[algorithm.name]:
            verdict = reference.verify(record)
            assert verdict.kind != "diverged", (algorithm.name, verdict)
            verdicts[verdict.kind] += 1
        assert sum(record.handoffs or 0 for record in served[algorithm.name]) > 0, algorithm.name
    assert verdicts["excused"] <= 1, verdicts
