"""The commit that a result is of, and whether it is."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import checkout


def test_only_what_a_run_reads_makes_a_checkout_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x", *words], check=True,
                       capture_output=True)

    files = [tmp_path / name for name in ("docs/reproduction.md", "results/paper/measured/a.csv", "bench/run.py")]
    new = [tmp_path / name for name in ("notes.txt", "conf/algo/own.yaml")]
    for file in files + new:
        file.parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        file.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    monkeypatch.setattr(checkout, "_ROOT", tmp_path)
    for file, dirty in zip(new, (False, True), strict=True):
        file.write_text("2")
        assert checkout.checkout()[1] is dirty, file
    file.unlink()
    for file, dirty in zip(files, (False, False, True), strict=True):
        file.write_text("2")
        sha, found = checkout.checkout()
        assert sha and found is dirty, file
        assert checkout.in_history(sha) is True
    assert checkout.in_history("0" * 40) is False
    monkeypatch.setattr(checkout, "_ROOT", tmp_path / "docs")
    assert checkout.in_history("0" * 40) is None
