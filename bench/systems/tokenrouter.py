"""system=tokenrouter: one subserver process a model."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.systems import Service
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import ClusterSpec


@contextmanager
def serve(spec: ClusterSpec) -> Iterator[Service]:
    with Cluster(spec) as cluster:
        yield cluster.frontend
