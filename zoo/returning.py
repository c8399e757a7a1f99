"""The large side of routers that were trained for one pair of models."""
from __future__ import annotations

from typing import Any, ClassVar

from tokenrouter.interface import ModelContext, ReturnAfterOne
from zoo import weights


class PairedReturn(ReturnAfterOne):
    """Keeps one token and returns; checks that it sits on the model that the weights were trained with."""

    kind: ClassVar[str]
    weights: str = ""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        _, self._metadata = weights.load(self.weights, self.kind)

    def setup(self, model: ModelContext) -> None:
        super().setup(model)
        weights.check_model(self.weights, self._metadata, "large", model)
