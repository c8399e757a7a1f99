"""system=std_sglang, std_vllm: standard serving with servers that a user would run, one a model, and our dispatcher."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from baselines import launch, served, service
from baselines.styles import STD
from bench.systems import Service
from tokenrouter.cluster.spec import ClusterSpec


@contextmanager
def serve(
    spec: ClusterSpec, *, server: str, python: str | None, server_args: Mapping[str, Any], start_s: float, clients: int
) -> Iterator[Service]:
    """Fields: conf/system/std_sglang.yaml."""
    service.refuse_drafts(spec)
    served.check(spec, server, f"std_{server}")
    with launch.running(spec, server, python, server_args, start_s) as servers, \
            service.serve(spec, STD, clients, servers.at, servers.check) as dispatcher:
        yield dispatcher
