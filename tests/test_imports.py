"""Imports go downwards only: tokenrouter <- zoo <- baselines <- bench. Lazy imports and module names in strings of
import calls count like any other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("tokenrouter", "zoo", "baselines", "bench")  # each may import itself and those before it
OUTSIDE = {"tests", "conf"}  # known by none
CALLS = {"import_module", "__import__", "resolve_name", "find_spec"}


def imported(source: str, package: str) -> set[str]:
    """Top-level names of all that a module imports, wherever in it. `package`: the module's own, for relative ones."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                names.add(node.module or "")
            else:  # the package that the dots lead to, and its name's first part is all that counts
                names.add(".".join(package.split(".")[: len(package.split(".")) - node.level + 1]))
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            first = node.args[0] if node.args else None
            if called in CALLS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                names.add(first.value.replace(":", "."))
    return {name.partition(".")[0] for name in names}


def upward(layer: str, source: str, package: str) -> set[str]:
    above = set(LAYERS[LAYERS.index(layer) + 1 :]) | OUTSIDE
    return imported(source, package) & above


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if (ROOT / layer).is_dir()])
def test_no_module_imports_from_above(layer: str) -> None:
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files
    found = {}
    for file in files:
        package = ".".join(file.relative_to(ROOT).parent.parts)
        if names := upward(layer, file.read_text(encoding="utf-8"), package):
            found[str(file.relative_to(ROOT))] = sorted(names)
    assert not found


@pytest.mark.parametrize(("layer", "source", "names"), [
    ("tokenrouter", "import zoo.tasks", {"zoo"}),
    ("tokenrouter", "def f():\n    from bench import run", {"bench"}),
    ("tokenrouter", "import torch, tokenrouter.core", set()),
    ("tokenrouter", "importlib.import_module('zoo.r2r')", {"zoo"}),
    ("tokenrouter", "pkgutil.resolve_name('baselines.std:Run')", {"baselines"}),
    ("tokenrouter", "from ..core import Request", set()),
    ("tokenrouter", "from tests.scripted import model", {"tests"}),
    ("zoo", "from tokenrouter import core", set()),
    ("zoo", "try:\n    import baselines\nexcept ImportError:\n    pass", {"baselines"}),
    ("baselines", "import zoo, tokenrouter", set()),
    ("baselines", "import bench", {"bench"}),
    ("bench", "import zoo, tokenrouter, baselines", set()),
])  # fmt: skip
def test_the_check_sees_every_form_of_import(layer: str, source: str, names: set[str]) -> None:
    assert upward(layer, source, "tokenrouter.engine") == names
