"""y = x W^T + b, with the weight kept in the form that is fastest for its shape on this machine."""
from __future__ import annotations

import time
from functools import cache

import torch
import torch.nn.functional as F

_BATCHES = (1, 4, 8)  # tokens of the decode steps that a form is chosen for
_REPEATS = 12


class Linear:
    """[T, in] -> [T, out] by the weight [out, in] as it is. `nbytes`: of the weights held."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """y + other, for a residual stream."""
        return self(x).add_(other)


class TransposedLinear(Linear):
    """The weight as [in, out]: on a CPU a matrix product of few rows reads it in order."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight.t().contiguous(), bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self._weight if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(other, x, self._weight)
        return y if self._bias is None else y.add_(self._bias)


class PackedLinear(Linear):
    """The weight in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight, bias)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _BATCHES[1])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        return _fastest_form(*weight.shape)(weight, bias)
    return Linear(weight, bias)


@cache
def _fastest_form(out_features: int, in_features: int) -> type[Linear]:
    """By the least time of each form for small batches, taken in turns; fp32 on a CPU."""
    forms: list[type[Linear]] = [TransposedLinear]
    if hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        forms.append(PackedLinear)
    if len(forms) == 1:
        return forms[0]
    weight = torch.zeros(out_features, in_features)
    candidates = [form(weight) for form in forms]
    total = [0.0] * len(forms)
    for batch in _BATCHES:
        x = torch.zeros(batch, in_features)
        times: list[list[float]] = [[] for _ in forms]
        for _ in range(_REPEATS):
            for taken, candidate in zip(times, candidates, strict=True):
                start = time.perf_counter()
                candidate(x)
                taken.append(time.perf_counter() - start)
        total = [so_far + min(taken) for so_far, taken in zip(total, times, strict=True)]
    return forms[total.index(min(total))]
