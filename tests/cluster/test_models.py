"""What is known of models before they start."""
from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from tokenrouter.cluster.models import revision


def test_a_hub_model_is_known_by_the_commit_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert revision("some/model", None) is None and revision("some/model", "v1") == "v1"
    for commit, name in (("a" * 40, "main"), ("b" * 40, "v1")):
        snapshot, ref = (tmp_path / "models--some--model" / at for at in (f"snapshots/{commit}", f"refs/{name}"))
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        ref.parent.mkdir(exist_ok=True)
        ref.write_text(commit)
    assert revision("some/model", None) == "a" * 40 and revision("some/model", "v1") == "b" * 40
    assert revision("some/model", "b" * 40) == "b" * 40


def test_a_folder_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = revision(str(tmp_path), None)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert before is not None and revision(str(tmp_path), None) != before
