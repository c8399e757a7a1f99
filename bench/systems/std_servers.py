"""system=std_sglang, std_vllm: standard serving with servers that a user would run, one a model, and our dispatcher."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from baselines import launch, served, service
from baselines.styles import STD
from bench.systems import Service
from tokenrouter.cluster.spec import ClusterSpec


def serve(
    spec: ClusterSpec, *, server: str, python: str | None, server_args: Mapping[str, Any], start_s: float, clients: int
) -> AbstractContextManager[Service]:
    """Fields: conf/system/std_sglang.yaml."""
    service.refuse_drafts(spec)
    served.check(spec, server, f"std_{server}")
    return _dispatched(spec, clients, launch.running(spec, server, python, server_args, start_s))


@contextmanager
def _dispatched(
    spec: ClusterSpec, clients: int, running: AbstractContextManager[launch.Processes]
) -> Iterator[Service]:
    with running as servers, service.serve(spec, STD, clients, servers.at, servers.check) as dispatcher:
        yield dispatcher
