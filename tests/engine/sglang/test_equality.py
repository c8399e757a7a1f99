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
TUNED = {"base": str(ROOT / "zoo/collm/weights/base"), "large": str(path("large"))}  # Co-LLM's
ALGORITHMS = ("r2r", "citer", "r_stitch", "entropy", "random", "speculative")
ME = {"roles": {role: {"_target_": "zoo.me.router.MERouter", "weights": [0.6, 0.4]} for role in PAIR},
      "entry": {"_target_": "zoo.me.router.MEEntry", "weights": [0.6, 0.4]}}
TOKENS = 48
EACH = 3  # requests of each algorithm, the last one sampled


def specification(name: str) -> AlgorithmSpec:
    if name == "me":
        algo = ME
    else:
        file = OmegaConf.load(ROOT / "conf" / "algo" / f"{name}.yaml")
        algo = OmegaConf.to_container(OmegaConf.create({"algo": file}), resolve=True)["algo"]
    return AlgorithmSpec(name=name, roles=list(algo["roles"]), routers=algo["roles"], entry=algo["entry"],
                         models=[0, 1])


def requests(names: list[str], count: int) -> list[Job]:
    tokenizer = AutoTokenizer.from_pretrained(path("small"))
    made = []
    for i, problem in enumerate(problems("test", count, 5)):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], add_generation_prompt=True, return_dict=False)
        sampled = i // len(names) % EACH == EACH - 1
        sampling = SamplingParams(i, TOKENS, temperature=1.0 if sampled else 0.0, top_p=0.95)
        made.append((names[i % len(names)], prompt, sampling))
    return made


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize(("names", "models"), [
    ([*ALGORITHMS, "me"], {role: str(path(role)) for role in PAIR}), (["collm"], TUNED)], ids=["pair", "collm"])
@pytest.mark.timeout(900)
def test_every_algorithm_tells_the_truth(names: list[str], models: dict[str, str], prefix_cache: bool) -> None:
    torch.set_num_threads(1)
    jobs, specs = requests(names, max(EACH * len(names), 18)), [specification(name) for name in names]
    spec = ClusterSpec(
        models=[ModelSpec(name=role, path=where) for role, where in models.items()], algorithms=specs,
        batching=BatchingSpec(policy="fixed", B=[1, 2]),
        engine=EngineSpec(kind="sglang", capacity_tokens=1024, options={"prefix_cache": prefix_cache}))
    served: dict[str, list[Record]] = {name: [] for name in names}
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
