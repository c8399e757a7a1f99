"""The systems that a run can name: each serves a ClusterSpec in its own way, and looks the same to the driver."""
from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from bench.config import RunConfig
from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import FinishReason, InputError, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.server.frontend import Event


class Service(Protocol):
    """What the driver asks of a running system; tokenrouter.server.frontend.Frontend is one."""

    models: list[ModelInfo]  # one a role, in the order of the roles

    def submit(self, prompt_ids: Sequence[int], sampling: SamplingParams, algorithm: str) -> str: ...

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None: ...

    def poll(self, timeout_s: float) -> list[Event]: ...

    def reset_stats(self) -> None: ...

    def stats(self) -> list[dict[str, Any]]: ...


def serve(config: RunConfig, spec: ClusterSpec) -> AbstractContextManager[Service]:
    """The system that `config` names: entering the context starts it, leaving stops it. InputError if it refuses to
    serve this; ours do so here, with nothing started."""
    target = config.system.target
    if config.load.via == "http":
        if target != "bench.systems.tokenrouter.serve" or config.system.options:
            raise InputError(f"load.via=http: allowed with system=tokenrouter, not with {config.system.name}")
        from bench.systems import http  # the web server, which other runs need not load

        return http.serve(spec, config.models)
    try:
        starter: Callable[..., AbstractContextManager[Service]] = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"system._target_={target!r}: allowed is an importable function ({error})") from None
    return starter(spec, **config.system.options)
