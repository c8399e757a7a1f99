"""What a cluster is made of, checked before anything is started.

Everything here is plain data: it travels to the subserver processes as one JSON document.
"""
from __future__ import annotations

import os
import re
from typing import Any, Literal

import msgspec
import zmq

from tokenrouter.core import InputError
from tokenrouter.engine import check_machine, parse_options
from tokenrouter.engine.options import EngineOptions
from tokenrouter.interface import Algorithm, BaseRouter, EntryContext
from tokenrouter.subserver.curve import Keys


class ModelSpec(msgspec.Struct, kw_only=True):
    """One subserver's model. `path`: a local folder or a hub id. `name` is what results call it."""

    name: str
    path: str
    revision: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    load_format: Literal["auto", "dummy"] = "auto"


class AlgorithmSpec(msgspec.Struct, kw_only=True):
    """One algorithm: `models[r]` is the index of the subserver that role r is bound to."""

    name: str
    roles: list[str]
    routers: dict[str, dict[str, Any]]
    entry: str | dict[str, Any]
    models: list[int]

    def build(self) -> Algorithm:
        return Algorithm(self.name, tuple(self.roles), self.routers, self.entry)


class BatchingSpec(msgspec.Struct, kw_only=True):
    """Launch policy. `B`: one threshold a subserver, in the order of the models; only `fixed` reads it.

    `max_wait_s` is the last resort against a batch that never fills; healthy runs never reach it (counted). `slo_ms`
    bounds what `slo` lets a request wait for others. `launch_log`: report every decision and what it depended on.
    `step_sync` and `model_sync` are the synchronous systems that the others are compared with.
    """

    policy: Literal["eager", "fixed", "optimal", "hold", "slo", "step_sync", "model_sync"] = "eager"
    B: list[int] = []
    max_wait_s: float = 1.0
    slo_ms: float = 30.0
    launch_log: bool = False


class EngineSpec(msgspec.Struct, kw_only=True):
    """Engine kind and its own options; `capacity_tokens` overrides the joint allocation from `memory_gb`."""

    kind: str = "torch"
    options: dict[str, Any] = {}
    memory_gb: float = 2.0
    reserve_gb: float = 0.5
    capacity_tokens: int | None = None
    max_batch: int = 64
    chunk_tokens: int = 512

    def tp_size(self, model: str) -> int:
        """How many devices the model of that name is divided among. `options.tp_size`: a number for all models, or
        numbers by their names, 1 for those that are not named. InputError if it is neither."""
        field, sizes = "engine.options.tp_size", self.options.get("tp_size", 1)
        if isinstance(sizes, dict):
            field, sizes = f"{field}.{model}", sizes.get(model, 1)
        if type(sizes) is not int or sizes < 1:
            raise InputError(f"{field}={sizes!r}: allowed is 1 or more, a number for all models or one by each name")
        return sizes

    def options_of(self, model: str) -> dict[str, Any]:
        """The engine's options for the model of that name."""
        return self.options | ({"tp_size": self.tp_size(model)} if "tp_size" in self.options else {})

    def parsed(self, model: str) -> EngineOptions:
        """The same, typed; InputError for the first that is unknown or out of range."""
        return parse_options(self.kind, self.options_of(model))


class LinkSpec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An emulated link between machines: what one subserver sends another goes out at `gbytes_per_s`, and is there
    `delay_ms` after that."""

    delay_ms: float
    gbytes_per_s: float

    def check(self) -> None:
        if not 0 <= self.delay_ms <= 1000:
            raise InputError(f"hardware.link.delay_ms={self.delay_ms:g}: allowed is 0 to 1000")
        if not 0 < self.gbytes_per_s <= 1e6:
            raise InputError(f"hardware.link.gbytes_per_s={self.gbytes_per_s:g}: allowed is a number > 0 and <= 1e6")


def usable_cores() -> list[int]:
    """Those that this process may be pinned to; none where the system does not pin."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class HardwareSpec(msgspec.Struct, kw_only=True):
    """`pin`: core of each subserver, cyclic; empty = not pinned. `threads`: torch threads a subserver."""

    threads: int = 1
    pin: list[int] = []
    transport: Literal["ipc", "tcp"] = "ipc"
    addresses: list[str] = []  # tcp: front end first, then one address a subserver; empty = free loopback ports
    link: LinkSpec | None = None

    def check_machine(self) -> None:
        """InputError for a core that this process may not use."""
        if not set(self.pin) <= set(cores := usable_cores()):
            raise InputError(f"hardware.pin={self.pin}: allowed on this machine are {', '.join(map(str, cores)) or []}")

    def check(self, subservers: int) -> None:
        if self.threads < 1:
            raise InputError(f"hardware.threads={self.threads}: allowed is >= 1")
        if self.transport == "tcp" and not zmq.has("curve"):
            raise InputError("hardware.transport=tcp: this libzmq has no CURVE to secure it; allowed is ipc")
        if self.link is not None:
            self.link.check()
        if not self.addresses:
            return
        if self.transport == "ipc":
            raise InputError(f"hardware.addresses={self.addresses}: allowed with transport=ipc is []: its sockets lie "
                             "in a directory that is private to the cluster")
        if len(self.addresses) != subservers + 1 or len(set(self.addresses)) <= subservers:
            raise InputError(f"hardware.addresses={self.addresses}: allowed is {subservers + 1} different addresses, "
                             "the front end's and one for each subserver")
        for address in self.addresses:
            if not re.fullmatch(r"tcp://[^/*:;@]+:\d{1,5}", address):
                raise InputError(f"hardware.addresses={address}: allowed is tcp://HOST:PORT")


class ClusterSpec(msgspec.Struct, kw_only=True):
    models: list[ModelSpec]
    algorithms: list[AlgorithmSpec]
    batching: BatchingSpec = msgspec.field(default_factory=BatchingSpec)
    engine: EngineSpec = msgspec.field(default_factory=EngineSpec)
    hardware: HardwareSpec = msgspec.field(default_factory=HardwareSpec)

    def check(self) -> None:
        """Raise InputError for the first thing that cannot work, naming field, value and what is allowed."""
        if not self.models:
            raise InputError("models=[]: allowed is one or more")
        B, count = self.batching.B, len(self.models)
        if self.batching.policy == "fixed" and (len(B) != count or any(b < 1 for b in B)):
            raise InputError(f"batching.B={B}: allowed is {count} numbers >= 1, one for each subserver")
        if self.batching.max_wait_s <= 0:
            raise InputError(f"batching.max_wait_s={self.batching.max_wait_s}: allowed is a time > 0 in seconds")
        if self.batching.slo_ms <= 0:
            raise InputError(f"batching.slo_ms={self.batching.slo_ms}: allowed is a time > 0 in milliseconds")
        if self.batching.policy in ("step_sync", "model_sync") and len(self.algorithms) > 1:
            raise InputError(f"batching.policy={self.batching.policy}: allowed is one algorithm at a time, these are "
                             f"{len(self.algorithms)}")
        for name in ("max_batch", "chunk_tokens"):
            if getattr(self.engine, name) < 1:
                raise InputError(f"engine.{name}={getattr(self.engine, name)}: allowed is >= 1")
        if "tp_size" in self.engine.options and self.engine.kind != "sglang":
            raise InputError(f"engine.options.tp_size={self.engine.options['tp_size']!r}: allowed with engine=sglang")
        for model in self.models:
            self.engine.parsed(model.name).check(model.name, model.path, model.device)
        self.hardware.check(count)
        names = [algorithm.name for algorithm in self.algorithms]
        if len(set(names)) != len(names) or not names:
            raise InputError(f"algorithms={names}: allowed is one or more, each name once")
        for spec in self.algorithms:
            bound = set(spec.models)
            if not len(bound) == len(spec.models) == len(spec.roles) or not bound <= set(range(count)):
                raise InputError(f"algo.models={spec.models}: allowed is another subserver of 0..{count - 1} for each "
                                 f"of {spec.roles}")
            algorithm = spec.build()
            for role in spec.roles:
                if role not in spec.routers:
                    raise InputError(f"algo.roles={sorted(spec.routers)}: allowed is a router for each of {spec.roles}")
                router = algorithm.router(role)  # parameters are checked by building it
                self._check_model(router, self.models[spec.models[spec.roles.index(role)]])
            if isinstance(spec.entry, str) and spec.entry not in spec.roles:
                raise InputError(f"algo.entry={spec.entry!r}: allowed is one of {spec.roles}")
            algorithm.entry_role(EntryContext([0], 0, {}))  # a rule's parameters are checked by asking it

    def check_machine(self) -> None:
        """Raise InputError for the first thing that this machine lacks: a core, a device, an engine's package."""
        self.hardware.check_machine()
        for model in self.models:
            check_machine(self.engine.kind, model.device, self.engine.parsed(model.name).devices)

    def _check_model(self, router: BaseRouter, model: ModelSpec) -> None:
        """Of a router that minds which model it sits on, where that can be known before it is loaded."""
        minds = type(router).check_model is not BaseRouter.check_model
        if not minds or self.engine.kind == "emulated" or model.load_format == "dummy":
            return
        from tokenrouter.cluster.models import context  # heavy imports, which other routers need not wait for

        try:
            known = context(model.path, model.revision)
        except (OSError, ValueError, KeyError):  # the engine says what is wrong with such a model
            return
        if known is not None:
            router.check_model(known)


class SubserverSpec(msgspec.Struct, kw_only=True):
    """What one subserver process is started with. `addresses` by index, the front end's under -1; `keys` for tcp.

    `parent`: the process that starts it, without which it ends.
    """

    index: int
    epoch: int
    parent: int
    core: int | None
    capacity_tokens: int
    addresses: dict[int, str]
    cluster: ClusterSpec
    keys: Keys | None = None
