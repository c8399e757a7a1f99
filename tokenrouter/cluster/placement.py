"""How much KV each model gets: the models that share a device get the same room in tokens (paper appendix B)."""
from __future__ import annotations

from collections import defaultdict

from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import InputError
from tokenrouter.engine.memory import check_shards, footprint, joint_capacity

GB = 1024**3


def plan_capacity(spec: ClusterSpec) -> list[int]:
    """KV capacity in tokens for each subserver. Raises InputError if the weights leave no room, or if a model cannot be
    divided as it should be."""
    engine = spec.engine
    parts = [engine.tp_size(model.name) for model in spec.models]
    for model, tp in zip(spec.models, parts, strict=True):
        if tp > 1:
            check_shards("engine.options.tp_size", model.path, tp)
    if engine.capacity_tokens is not None:
        return [engine.capacity_tokens] * len(spec.models)
    if engine.kind == "emulated":
        raise InputError("engine.capacity_tokens=None: allowed is a number of tokens, as emulated models have no size")
    budget, reserve = int(engine.memory_gb * GB), int(engine.reserve_gb * GB)
    sharing = defaultdict(list)
    for model, tp in zip(spec.models, parts, strict=True):
        shard = footprint(model.path, model.dtype, tp)
        for device in _devices(model.device, tp):
            sharing[device].append(shard)
    shares = {device: joint_capacity(budget, shards, reserve=reserve) for device, shards in sharing.items()}
    return [min(shares[device] for device in _devices(model.device, tp))
            for model, tp in zip(spec.models, parts, strict=True)]


def _devices(first: str, tp: int) -> list[str]:
    """Where the shards of a model are: one a device, from the first on. All on the one CPU."""
    kind, _, index = first.partition(":")
    return [kind] * tp if kind == "cpu" else [f"{kind}:{int(index or 0) + rank}" for rank in range(tp)]
