from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scripted import dummy
from tests.toy import toy_algorithm
from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec, EngineSpec, HardwareSpec, ModelSpec

VOCAB, EOS = 64, 0


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
def make_spec(folders: list[Path]) -> Callable[..., ClusterSpec]:
    def make(algorithms: list[AlgorithmSpec] | None = None, *, models: int = 2, capacity_tokens: int = 4096,
             batching: BatchingSpec | None = None, options: dict[str, Any] | None = None,
             **hardware: Any) -> ClusterSpec:
        return ClusterSpec(
            models=[ModelSpec(name=f"m{i}", path=str(folders[i])) for i in range(models)],
            algorithms=algorithms or [toy_algorithm(models)],
            batching=batching or BatchingSpec(),
            engine=EngineSpec(capacity_tokens=capacity_tokens, chunk_tokens=32, options=options or {}),
            hardware=HardwareSpec(**hardware),
        )

    return make
