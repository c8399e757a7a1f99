"""How much KV each model gets: the models that share a device get the same room in tokens (paper appendix B)."""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from tokenrouter.cluster.spec import ClusterSpec, EngineSpec
from tokenrouter.core import InputError
from tokenrouter.engine.memory import Footprint, check_shards, footprint, joint_capacity

GB = 1024**3


def plan_capacity(spec: ClusterSpec) -> list[int]:
    """KV capacity in tokens for each subserver, whole pages. Raises InputError if the weights leave no room for one, or
    if a model cannot be divided as it should be."""
    engine = spec.engine
    parts = [engine.tp_size(model.name) for model in spec.models]
    for model, tp in zip(spec.models, parts, strict=True):
        if tp > 1:
            check_shards("engine.options.tp_size", model.path, tp, model.revision)
    options = engine.parsed(spec.models[0].name)  # in pages they are the same for all
    if engine.capacity_tokens is not None:
        return [options.page * options.pages(engine.capacity_tokens)] * len(spec.models)
    if engine.kind == "emulated":
        raise InputError("engine.capacity_tokens=None: allowed is a number of tokens, as emulated models have no size")
    budget, reserve = int(engine.memory_gb * GB), int(engine.reserve_gb * GB)
    sharing = defaultdict(list)
    for model, tp in zip(spec.models, parts, strict=True):
        shard = footprint(model.path, model.dtype, tp, model.revision)
        for device in _devices(model.device, tp):
            sharing[device].append(shard)
    shares = {device: joint_capacity(budget, shards, reserve=reserve) for device, shards in sharing.items()}
    for device, share in shares.items():
        if share < options.page:
            raise InputError(_no_room(engine, device, sharing[device], options.page))
    return [min(shares[device] for device in _devices(model.device, tp)) // options.page * options.page
            for model, tp in zip(spec.models, parts, strict=True)]


def _no_room(engine: EngineSpec, device: str, models: Sequence[Footprint], tokens: int) -> str:
    weights = sum(model.weight_bytes for model in models) / GB
    need = weights + engine.reserve_gb + tokens * sum(model.bytes_per_token for model in models) / GB
    least = math.ceil(1e3 * need) / 1e3
    return (f"engine.memory_gb={engine.memory_gb:g}: allowed is {least:g} or more, for weights of {weights:.3f} on "
            f"{device}, engine.reserve_gb={engine.reserve_gb:g} and {tokens} tokens of KV")


def _devices(first: str, tp: int) -> list[str]:
    """Where the shards of a model are: one a device, from the first on. All on the one CPU."""
    kind, _, index = first.partition(":")
    start = int(index) if index.isdecimal() else 0  # a device of another name is refused where it is looked for
    return [kind] * tp if kind == "cpu" else [f"{kind}:{start + rank}" for rank in range(tp)]
