"""How much KV each model gets: the models that share a device get the same room in tokens (paper appendix B)."""
from __future__ import annotations

from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import InputError
from tokenrouter.engine.memory import footprint, joint_capacity

GB = 1024**3


def plan_capacity(spec: ClusterSpec) -> list[int]:
    """KV capacity in tokens for each subserver. Raises InputError if the weights leave no room."""
    engine = spec.engine
    if engine.capacity_tokens is not None:
        return [engine.capacity_tokens] * len(spec.models)
    if engine.kind == "emulated":
        raise InputError("engine.capacity_tokens=None: allowed is a number of tokens, as emulated models have no size")
    budget, reserve = int(engine.memory_gb * GB), int(engine.reserve_gb * GB)
    sizes = [footprint(model.path, model.dtype) for model in spec.models]
    shares = {}
    for device in {model.device for model in spec.models}:
        sharing = [size for size, model in zip(sizes, spec.models, strict=True) if model.device == device]
        shares[device] = joint_capacity(budget, sharing, reserve=reserve)
    return [shares[model.device] for model in spec.models]
