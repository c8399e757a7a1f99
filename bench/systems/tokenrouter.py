"""system=tokenrouter, and its own ablations: one subserver process a model."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from bench.systems import Service
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import ClusterSpec


@contextmanager
def serve(spec: ClusterSpec, policy: Any = None) -> Iterator[Service]:
    """`policy` takes the place of the launch policy that `spec` names."""
    if policy is not None:
        spec = msgspec.structs.replace(spec, batching=msgspec.structs.replace(spec.batching, policy=policy))
    with Cluster(spec) as cluster:
        yield cluster.frontend
