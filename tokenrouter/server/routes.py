"""The models that clients see: each is a route, an algorithm with values for its parameters."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenrouter.core import InputError
from tokenrouter.interface import Algorithm
from tokenrouter.server.errors import ApiError


@dataclass(frozen=True)
class Route:
    id: str
    algorithm: Algorithm
    params: Mapping[str, Any] = field(default_factory=dict)


class Routes:
    """What a request's `model` may be; the first algorithm is meant where it has none."""

    def __init__(self, algorithms: Iterable[Algorithm], thresholds: Iterable[float | str]) -> None:
        self._routes: dict[str, Route] = {}
        thresholds = list(thresholds)
        for algorithm in algorithms:
            self._routes[algorithm.name] = Route(algorithm.name, algorithm)
            if "threshold" not in algorithm.params:
                continue
            for threshold in thresholds:
                try:
                    algorithm.params["threshold"].parse(threshold)
                except InputError as error:
                    raise InputError(f"server.thresholds={thresholds}: {error}") from None
                name = f"{algorithm.name}@{threshold:g}" if isinstance(threshold, float) else \
                    f"{algorithm.name}@{threshold}"
                self._routes[name] = Route(name, algorithm, {"threshold": threshold})

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    @property
    def default(self) -> Route:
        return next(iter(self._routes.values()))

    def find(self, model: str | None) -> Route:
        """Never looks at anything but its table: what a client names is not opened."""
        if model is None:
            return self.default
        if (route := self._routes.get(model)) is None:
            raise ApiError(404, f"model={model[:100]!r}: allowed is one of {', '.join(self._routes)}", param="model",
                           code="model_not_found")
        return route
