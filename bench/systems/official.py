"""system=official, official_improved: how an algorithm's released code executes it, on the same engine; or that code
itself, where there is a checkout."""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from baselines import checkout, service
from baselines.styles import style_of
from bench.systems import Service
from tokenrouter.cluster.spec import ClusterSpec


def serve(
    spec: ClusterSpec, *, improved: bool, like: str | None, path: str | None, command: Sequence[str], clients: int
) -> AbstractContextManager[Service]:
    """`clients`: as many requests may be under way at once. conf/config.yaml explains `like`, `path` and `command`."""
    if path is not None:
        return checkout.serve(spec, path, command)
    style = style_of(spec.algorithms[0].name, like, improved=improved)
    service.refuse_drafts(spec)
    return service.serve(spec, style, clients)
