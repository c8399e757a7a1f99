"""Where the files are that come with the installed packages."""
from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the folder that holds the packages and conf/


def resolve(path: str | Path) -> Path:
    """The file or folder that a path names: as it stands or, where nothing is there, below the installed packages."""
    return Path(path) if Path(path).exists() else ROOT / path
