"""The main job on what is shipped: R2R over the embedded pair, against the truth."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tests.serve import serve
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec, EngineSpec, ModelSpec
from tokenrouter.core import SamplingParams
from zoo.models import path
from zoo.reference import Reference
from zoo.tasks.arithmetic import problems

CONF = Path(__file__).parents[1] / "conf"


@pytest.fixture(scope="module")
def spec() -> ClusterSpec:
    algo = OmegaConf.to_container(OmegaConf.create({"algo": OmegaConf.load(CONF / "algo" / "r2r.yaml")}), resolve=True)
    r2r = algo["algo"]
    return ClusterSpec(
        models=[ModelSpec(name=role, path=str(path(role))) for role in r2r["roles"]],
        algorithms=[AlgorithmSpec(name="r2r", roles=list(r2r["roles"]), routers=r2r["roles"], entry=r2r["entry"],
                                  models=[0, 1])],
        batching=BatchingSpec(policy="fixed", B=[1, 2]),
        engine=EngineSpec(capacity_tokens=1536),  # three requests: the others must take turns
    )


def test_r2r_on_the_embedded_pair_tells_the_truth(spec: ClusterSpec):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(path("small"))
    jobs = []
    for i, problem in enumerate(problems("test", 12, 5)):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], add_generation_prompt=True, return_dict=False)
        jobs.append(("r2r", prompt, SamplingParams(i, 400, temperature=(0.0, 0.0, 1.0)[i % 3], top_p=0.95)))
    with Cluster(spec) as cluster:
        frontend = cluster.frontend
        records = serve(frontend, jobs, concurrency=len(jobs))
        frontend.check()
        taken = sum(report["evictions"] + report["preemptions"] for report in frontend.stats())
    reference = Reference.load(spec.algorithms[0].build(), [model.path for model in spec.models])
    verdicts = [reference.verify(record) for record in records]
    assert not [verdict for verdict in verdicts if verdict.kind == "diverged"]
    assert sum(verdict.kind == "excused" for verdict in verdicts) <= 1
    assert taken > 0 and sum(record.handoffs or 0 for record in records) > 0
