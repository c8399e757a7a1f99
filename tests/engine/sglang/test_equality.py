"""The truth on engine=sglang: the embedded pair's tokens and their authors are the reference's, for every algorithm."""
from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.serve import Job, serve
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec, EngineSpec, ModelSpec
from tokenrouter.core import SamplingParams
from zoo.models import path
from zoo.reference import Reference, Verdict
from zoo.tasks.arithmetic import problems
from zoo.walk import Record

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs `make sglang-cpu`")

ROOT = Path(__file__).parents[3]
CONCURRENCIES = (1, 4, 16)
MODELS = {"small": str(path("small")), "large": str(path("large")), "base": str(ROOT / "zoo/collm/weights/base")}
PAIR = ("small", "large")
ME = {"roles": {role: {"_target_": "zoo.me.router.MERouter", "weights": [0.6, 0.4]} for role in PAIR},
      "entry": {"_target_": "zoo.me.router.MEEntry", "weights": [0.6, 0.4]}}
BOUND = {  # algorithm: the models of its roles
    **dict.fromkeys(("r2r", "citer", "r_stitch", "entropy", "random", "speculative", "me"), PAIR),
    "collm": ("base", "large")}
TOKENS = 48
EACH = 3  # requests of each algorithm, the last one sampled


def specification(name: str) -> AlgorithmSpec:
    if name == "me":
        algo = ME
    else:
        file = OmegaConf.load(ROOT / "conf" / "algo" / f"{name}.yaml")
        algo = OmegaConf.to_container(OmegaConf.create({"algo": file}), resolve=True)["algo"]
    return AlgorithmSpec(name=name, roles=list(algo["roles"]), routers=algo["roles"], entry=algo["entry"],
                         models=[list(MODELS).index(model) for model in BOUND[name]])


def requests(specs: list[AlgorithmSpec]) -> list[Job]:
    tokenizer = AutoTokenizer.from_pretrained(MODELS["small"])
    made = []
    for i, problem in enumerate(problems("test", EACH * len(specs), 5)):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], add_generation_prompt=True, return_dict=False)
        temperature = 1.0 if i // len(specs) == EACH - 1 else 0.0
        made.append((specs[i % len(specs)].name, prompt, SamplingParams(i, TOKENS, temperature, top_p=0.95)))
    return made


class Truth:
    """The reference's verdicts. Records of a request are to be the same, so most of them it has judged before."""

    def __init__(self, specs: list[AlgorithmSpec]) -> None:
        models = [AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32) for where in MODELS.values()]
        self._references = {
            spec.name: Reference(spec.build(), [models[index] for index in spec.models]) for spec in specs}
        self._verdicts: dict[bytes, Verdict] = {}

    def verdict(self, algorithm: str, record: Record) -> Verdict:
        key = msgspec.json.encode((algorithm, record))
        if key not in self._verdicts:
            self._verdicts[key] = self._references[algorithm].verify(record)
        return self._verdicts[key]


@pytest.fixture(scope="module")
def specs() -> list[AlgorithmSpec]:
    torch.set_num_threads(1)
    return [specification(name) for name in BOUND]


@pytest.fixture(scope="module")
def truth(specs: list[AlgorithmSpec]) -> Truth:
    return Truth(specs)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.timeout(600)
def test_every_algorithm_tells_the_truth(specs: list[AlgorithmSpec], truth: Truth, prefix_cache: bool) -> None:
    jobs = requests(specs)
    spec = ClusterSpec(
        models=[ModelSpec(name=name, path=where) for name, where in MODELS.items()], algorithms=specs,
        batching=BatchingSpec(policy="fixed", B=[1, 2, 1]),
        engine=EngineSpec(kind="sglang", capacity_tokens=1024, options={"prefix_cache": prefix_cache}))
    with Cluster(spec) as cluster:
        served = {concurrency: serve(cluster.frontend, jobs, concurrency) for concurrency in CONCURRENCIES}
        cluster.frontend.check()
        reports = cluster.frontend.stats()
    assert all(report["timeouts"] == 0 for report in reports)
    assert sum(report["evictions"] + report["preemptions"] for report in reports) > 0  # 16 do not fit at once
    hits = sum(report["engine"]["prefix_hit_tokens"] for report in reports)
    assert (hits > 0) == prefix_cache
    excused, handoffs = [], Counter()
    for concurrency, records in served.items():
        for (name, _, _), record in zip(jobs, records, strict=True):
            verdict = truth.verdict(name, record)
            assert verdict.kind != "diverged", (name, concurrency, verdict)
            if verdict.kind == "excused":
                excused.append((name, concurrency, verdict))
            handoffs[name] += record.handoffs or 0
    assert len(excused) <= 1, excused
    assert all(handoffs[name] for name in BOUND), handoffs
