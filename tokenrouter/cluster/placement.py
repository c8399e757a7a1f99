"""How much KV each model gets: the models that share a device get the same room in tokens (paper appendix B)."""
from __future__ import annotations

from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.engine.memory import capacity_tokens, footprint

GB = 1024**3


def plan_capacity(spec: ClusterSpec) -> list[int]:
    """KV capacity in tokens for each subserver. Raises InputError if the weights leave no room."""
    engine = spec.engine
    if engine.capacity_tokens is not None:
        return [engine.capacity_tokens] * len(spec.models)
    sizes = [footprint(model.path, model.dtype) for model in spec.models]
    budget, reserve = int(engine.memory_gb * GB), int(engine.reserve_gb * GB)
    shares = {device: capacity_tokens([size for size, model in zip(sizes, spec.models, strict=True)
                                       if model.device == device], budget=budget, reserve=reserve)
              for device in {model.device for model in spec.models}}
    return [shares[model.device] for model in spec.models]
