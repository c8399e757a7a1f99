"""system=std, std_plus: standard serving, one HTTP server a model and an external dispatcher, one token a call."""
from __future__ import annotations

from contextlib import AbstractContextManager

from baselines import service
from baselines.styles import STD, STD_PLUS
from bench.systems import Service
from tokenrouter.cluster.spec import ClusterSpec


def serve(spec: ClusterSpec, *, sessions: bool, clients: int) -> AbstractContextManager[Service]:
    """Fields: conf/system/std.yaml."""
    service.refuse_drafts(spec)
    return service.serve(spec, STD_PLUS if sessions else STD, clients)
