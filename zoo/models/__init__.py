"""The embedded models: three causal LMs of one family (Qwen3 architecture) and one tokenizer. See README.md."""

from __future__ import annotations

from pathlib import Path

from tokenrouter.core import InputError

SIZES = ("small", "medium", "large")


def path(size: str) -> Path:
    """The folder of an embedded model, as `from_pretrained` takes it. Raises InputError for an unknown size."""
    if size not in SIZES:
        raise InputError(f"size: {size!r} is unknown; allowed: {', '.join(SIZES)}")
    return Path(__file__).parent / size
