from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from bench import series
from tests.bench.paper_runs import Runs
from tests.scripted import config
from zoo.models.tokenizer import END, build

ROOT = Path(__file__).parents[2]
Compose = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the driver reads of models before they start: configuration and tokenizer; `other` spells differently."""
    made = {}
    for name, problems in (("small", 50), ("large", 50), ("other", 20)):
        folder = made[name] = tmp_path_factory.mktemp(name)
        tokenizer = build(problems)
        tokenizer.save_pretrained(folder)
        config(len(tokenizer), tokenizer.convert_tokens_to_ids(END)).save_pretrained(folder)
    return made


@pytest.fixture(scope="session")
def composed(folders: dict[str, Path]) -> Compose:
    """Compose conf/ with overrides, on those models."""

    def make(*overrides: str) -> dict[str, Any]:
        models = [f"models.roles.{role}.path={folders[role]}" for role in ("small", "large")]
        models.append(f"models.tokenizer={folders['small']}")
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            made = compose("config", ["algo=entropy", "logger=none", "workload.max_tokens=16", *models, *overrides])
        values: Any = OmegaConf.to_container(made, resolve=True, throw_on_missing=True)
        return dict(values)

    return make


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    stand_in = Runs({"llm_only": 100.0, "official": 10.0, "tokenrouter": 400.0})
    monkeypatch.setattr(series, "_execute", stand_in)
    return stand_in
