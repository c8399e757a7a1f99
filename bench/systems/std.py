"""system=std, std_plus: standard serving, one HTTP server a model and an external dispatcher, one token a call."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from baselines import service
from baselines.styles import STD, STD_PLUS
from bench.systems import Service
from tokenrouter.cluster.spec import ClusterSpec


@contextmanager
def serve(spec: ClusterSpec, *, sessions: bool, clients: int) -> Iterator[Service]:
    """Fields: conf/system/std.yaml."""
    with service.serve(spec, STD_PLUS if sessions else STD, clients) as running:
        yield running
