"""What SGLang imports although a CPU has no use for it: `make sglang-cpu` puts this module into its environment, where
every Python process runs it at its start.

`sgl_kernel` holds SGLang's CUDA kernels: names of it are imported, and none is called for dense models on a CPU.
PyPI's `torchvision` is built for CUDA: beside a CPU torch its operators do not load, and it stops where it describes
two of them, unless they are declared before.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar, NoReturn

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class Missing:
    """A name of the kernel package: a kernel, a table of kernels, a type."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Missing:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Missing(f"{self._name}.{attribute}")

    def __call__(self, *args: object, **options: object) -> NoReturn:
        raise RuntimeError(f"SGLang called {self._name}, which needs a GPU")


class KernelNames(MetaPathFinder, Loader):
    """`sgl_kernel` and whatever is below it; asked last, so that a real one comes first."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "sgl_kernel" else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = Missing(module.__name__).__getattr__  # type: ignore[method-assign]


class BeforeTorchvision(MetaPathFinder):
    """Finds nothing; declares the operators when torchvision is looked for."""

    _declared: ClassVar[Any] = None  # operators live as long as what declared them

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name != "torchvision":
            return
        import torch  # may look for torchvision itself

        cls = type(self)
        if cls._declared is None:
            library: Any = torch.library.Library
            cls._declared = library("torchvision", "FRAGMENT")
            for schema in _OPERATORS:
                cls._declared.define(schema)


def install() -> None:
    """Once or several times: Python may read the environment's folder of packages under two names."""
    sys.meta_path.insert(0, BeforeTorchvision())
    sys.meta_path.append(KernelNames())
