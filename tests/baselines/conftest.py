from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tests.scripted import dummy
from tokenrouter.cluster.spec import AlgorithmSpec, ClusterSpec, EngineSpec, ModelSpec
from tokenrouter.core import SamplingParams
from zoo.reference import Reference
from zoo.walk import Record

VOCAB, EOS = 64, 0
ENTROPY = {"_target_": "zoo.entropy.router.EntropySmall", "threshold": 0.75}
MakeSpec = Callable[[AlgorithmSpec], ClusterSpec]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three random-weight models of one vocabulary and different sizes."""
    made = []
    for index, sizes in enumerate(({}, {"num_hidden_layers": 4}, {"hidden_size": 48})):
        folder = tmp_path_factory.mktemp(f"model{index}")
        dummy(index, VOCAB, EOS, **sizes).save_pretrained(folder)
        made.append(folder)
    return made


@pytest.fixture(scope="session")
def make_spec(folders: list[Path]) -> MakeSpec:
    def make(algorithm: AlgorithmSpec) -> ClusterSpec:
        models = [ModelSpec(name=role, path=str(folders[i])) for i, role in enumerate(algorithm.roles)]
        return ClusterSpec(models=models, algorithms=[algorithm],
                           engine=EngineSpec(capacity_tokens=4096, chunk_tokens=32))

    return make


@pytest.fixture(scope="session")
def pair() -> AlgorithmSpec:
    """About half of the small model's proposals are written by the large one."""
    return AlgorithmSpec(name="r2r", roles=["small", "large"], entry="small", models=[0, 1], routers={
        "small": ENTROPY, "large": {"_target_": "tokenrouter.interface.ReturnAfterOne"}})


@pytest.fixture(scope="session")
def replayed() -> AlgorithmSpec:
    """Routes drawn by the number of decisions; what is discarded counts, and only handoffs tell of it."""
    router = {"_target_": "zoo.replay.router.Replay", "P": [[0.5, 0.5], [0.6, 0.4]], "C": [[1.0, 0.3], [0.5, 1.0]]}
    roles = ["small", "large"]
    return AlgorithmSpec(name="replay", roles=roles, entry="small", models=[0, 1], routers=dict.fromkeys(roles, router))


@pytest.fixture(scope="session")
def ring() -> AlgorithmSpec:
    """Three models in turn, each of whose tokens is kept."""
    roles = ["small", "medium", "large"]
    routers: dict[str, Any] = {role: {"_target_": "tests.zoo.algorithms.Circular"} for role in roles}
    return AlgorithmSpec(name="me", roles=roles, entry="medium", models=[0, 1, 2], routers=routers)


@pytest.fixture(scope="session")
def prompts() -> list[Record]:
    """Requests of mixed lengths; every second one is drawn from a filtered distribution."""
    rng = random.Random(11)
    made = []
    for i in range(14):
        prompt = [rng.randrange(1, VOCAB) for _ in range(rng.choice((1, 3, 17, 40, 75)))]
        filters = {} if i % 2 else {"temperature": 0.9, "top_p": 0.9, "top_k": 20}
        made.append(Record(prompt, SamplingParams(rng.randrange(2**40), rng.choice((1, 9, 30)), **filters)))
    return made


@pytest.fixture(scope="session")
def truth(folders: list[Path], prompts: list[Record]) -> Callable[[AlgorithmSpec], list[Record]]:
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]

    def decode(algorithm: AlgorithmSpec) -> list[Record]:
        reference = Reference(algorithm.build(), models[: len(algorithm.roles)], VOCAB)
        return [reference.decode(record.prompt_ids, record.sampling) for record in prompts]

    return decode
