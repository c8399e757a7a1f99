"""system=std_sglang, std_sglang_plus, std_vllm: standard serving with servers that a user would run, one a model, and
our dispatcher."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from baselines import launch, served, service
from baselines.servers import server_of
from baselines.styles import STD, STD_PLUS, Style
from bench.systems import Service
from tokenrouter.cluster.spec import ClusterSpec


def serve(
    spec: ClusterSpec, *, server: str, python: str | None, server_args: Mapping[str, Any], start_s: float, clients: int,
    sessions: bool = False,
) -> AbstractContextManager[Service]:
    """Fields: conf/system/std_sglang.yaml."""
    service.refuse_drafts(spec)
    served.check(spec, server, f"std_{server}", sessions=sessions)
    offered = server_of(server).sessions
    if sessions and offered:
        server_args = {**offered.arguments(spec.engine), **server_args}
    running = launch.running(spec, server, python, server_args, start_s)
    return _dispatched(spec, STD_PLUS if sessions else STD, clients, running)


@contextmanager
def _dispatched(
    spec: ClusterSpec, style: Style, clients: int, running: AbstractContextManager[launch.Processes]
) -> Iterator[Service]:
    with running as servers, service.serve(spec, style, clients, servers.at, servers.check) as dispatcher:
        yield dispatcher
