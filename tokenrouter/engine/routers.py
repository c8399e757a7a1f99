"""What a router gets of the engine that it sits on."""
from __future__ import annotations

from tokenrouter.engine.base import Engine
from tokenrouter.interface import BaseRouter, ModelContext


def context_of(engine: Engine) -> ModelContext:
    info = engine.info
    return ModelContext(engine.device, info.vocab_size, info.hidden_size, info.eos_token_ids, engine.embed)


def set_up(router: BaseRouter, engine: Engine) -> None:
    """Ready to route what the engine computes; a score that it declares comes from graphs where there are some."""
    router.setup(context_of(engine))
    if score := getattr(router, "score", None):
        setattr(router, "score", engine.graphed(score))  # noqa: B010 - what declares it is the router
