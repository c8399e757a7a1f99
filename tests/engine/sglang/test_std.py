"""Standard serving with SGLang's own server comes to the reference's tokens, by log-probabilities and hidden states."""
from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from baselines.launch import Processes, running
from baselines.servers import Sessions
from baselines.service import serve
from baselines.styles import STD, STD_PLUS, Style
from tests.engine.sglang.test_equality import MODELS, PAIR, Truth, requests, specification
from tests.serve import serve as send
from tokenrouter.cluster.spec import ClusterSpec, EngineSpec, ModelSpec

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs `make sglang-cpu`"),
    pytest.mark.timeout(600),
]


def cluster(algorithm: str, capacity_tokens: int = 4096) -> ClusterSpec:
    return ClusterSpec(models=[ModelSpec(name=name, path=MODELS[name]) for name in PAIR],
                       algorithms=[specification(algorithm)], engine=EngineSpec(capacity_tokens=capacity_tokens))


@pytest.fixture(scope="module")
def servers() -> Iterator[Processes]:
    """Started once, for the algorithm that asks for more than the others, and for calls in sessions and without."""
    spec = cluster("r2r")
    arguments = {"sleep_on_idle": True, **Sessions().arguments(spec.engine)}
    with running(spec, "sglang", None, arguments, 500) as started:
        yield started


@pytest.mark.parametrize("style", [STD, STD_PLUS], ids=["calls", "sessions"])
@pytest.mark.parametrize("algorithm", ["entropy", "r2r"])
def test_the_reference_s_tokens(servers: Processes, algorithm: str, style: Style) -> None:
    spec = cluster(algorithm)
    truth, jobs = Truth(spec.algorithms), requests(spec.algorithms)
    assert {sampling.temperature for _, _, sampling in jobs} == {0.0, 1.0}
    with serve(spec, style, 2, servers.at, servers.check) as service:
        records = send(service, jobs, 2)  # type: ignore[arg-type]
        reports = service.stats()
    for record in records:
        verdict = truth.verdict(algorithm, record)
        assert verdict.kind != "diverged", verdict
    assert sum(record.handoffs or 0 for record in records) > 0
    for report in reports:
        parts = report["breakdown_ms"]
        assert set(parts) == {"inference", "sampling and routing", "others"} and min(parts.values()) > 0
        assert sum(report["tokens"]) < min(len(prompt) for _, prompt, _ in jobs) * report["steps"] / 2  # found again


def test_sessions_that_do_not_fit_at_once(servers: Processes) -> None:
    """The dispatcher closes some, and has their prefixes computed again."""
    spec = cluster("r2r", 240)
    # Prompts that the servers' prefix caches have nothing of, whatever was run before.
    truth = Truth(spec.algorithms)
    jobs = [(name, prompt[1:], sampling) for name, prompt, sampling in requests(spec.algorithms)]
    with serve(spec, STD_PLUS, 3, servers.at, servers.check) as service:
        records = send(service, jobs, 3)  # type: ignore[arg-type]
        reports = service.stats()
    for record in records:
        verdict = truth.verdict("r2r", record)
        assert verdict.kind != "diverged", verdict
    assert sum(reports[0]["tokens"]) > sum(len(record.prompt_ids) + len(record.token_ids) for record in records)


def test_a_server_that_dies_is_reported(servers: Processes) -> None:
    """The last one: it ends what the others use."""
    spec = cluster("entropy")
    with serve(spec, STD, 1, servers.at, servers.check) as service:
        service.submit([3, 4, 5], requests(spec.algorithms)[0][2], "entropy")
        large: Any = servers._processes[1]
        os.kill(large._process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"the server of large has ended, exit code -9; the end of its log:"):
            while True:
                service.poll(1.0)
