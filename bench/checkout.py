"""The commit that the code is of."""
from __future__ import annotations

import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[1]
# Not what no run reads, but tables are written to.
_READ = (".", *(f":!{path}" for path in (
    "README.md", "docs", "results/LEADERBOARD.md", "results/LEADERBOARD.html", "results/entries",
    "results/paper/measured", "results/quality", "results/zoo")))
_NEW = ("conf", "zoo", "tokenrouter", "baselines", "bench", "hydra_plugins")  # where a run would find new files


def checkout() -> tuple[str | None, bool | None]:
    """The checkout's commit and whether files that a run may read differ from it, new ones included; None where this is
    none."""
    if not (_ROOT / ".git").exists():
        return None, None
    try:
        changed = _ask("status", "--porcelain", "--untracked-files=no", "--", *_READ)
        new = _ask("ls-files", "--others", "--exclude-standard", "--", *_NEW)
        return _ask("rev-parse", "HEAD"), bool(changed or new)
    except (OSError, subprocess.SubprocessError):
        return None, None


def _ask(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def in_history(sha: str) -> bool | None:
    """Whether the checkout knows this commit; None where this is no checkout, or not one of the whole history."""
    try:
        if not (_ROOT / ".git").exists() or _ask("rev-parse", "--is-shallow-repository") == "true":
            return None
    except (OSError, subprocess.SubprocessError):
        return None
    try:
        _ask("cat-file", "-e", f"{sha}^{{commit}}")
    except subprocess.SubprocessError:
        return False
    return True
