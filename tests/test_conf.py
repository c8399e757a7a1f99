"""Every committed yaml composes into a valid configuration; the small experiments run from end to end."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from bench.config import RunConfig, validate
from tokenrouter.cluster.models import locate
from tokenrouter.engine import parse_options

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
CHOICES = sorted(f"{file.parent.name}={file.stem}" for file in CONF.glob("*/*.yaml"))
SMALL = ("smoke",)  # experiments that end within a minute


def composed(*overrides: str) -> RunConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return validate(OmegaConf.to_container(  # type: ignore[arg-type]
            compose("config", list(overrides)), resolve=True, throw_on_missing=True))


def test_there_are_choices_in_every_group() -> None:
    groups = {choice.partition("=")[0] for choice in CHOICES}
    assert groups == {"algo", "batching", "engine", "experiment", "hardware", "load", "logger", "models", "system",
                      "workload"}
    assert not list(CONF.glob("*/*/*")), "a file where no test looks"


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes(choice: str) -> None:
    group, _, name = choice.partition("=")
    config = composed(choice)
    named = {"algo": config.algo.name, "models": config.models.name, "system": config.system.name,
             "workload": config.workload["name"]}
    assert named.get(group, name) == name


@pytest.mark.parametrize("kind", [choice.partition("=")[2] for choice in CHOICES if choice.startswith("engine=")])
def test_all_options_of_an_engine_are_in_its_yaml(kind: str) -> None:
    """So that none takes a `+` on the command line."""
    options = composed(f"engine={kind}").engine.options
    assert set(options) == set(parse_options(kind, options).__struct_fields__)


@pytest.mark.parametrize("name", [choice.partition("=")[2] for choice in CHOICES if choice.startswith("models=")])
def test_models_are_folders_or_hub_ids(name: str) -> None:
    models = composed(f"models={name}").models
    for role, model in models.roles.items():
        if name != "emulated":  # whose models are names in the engine's options
            found = locate(f"models.roles.{role}.path", model.path)
            assert Path(found).is_dir() if models.embedded else re.fullmatch(r"[\w.-]+/[\w.-]+", found)
    assert models.tokenizer is None or locate("models.tokenizer", models.tokenizer)
    assert {"small", "large"} <= set(models.roles)
    lines = (CONF / f"models/{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    if not models.embedded and name != "emulated":  # how it is run, which takes models that are not here
        [command] = [line for line in lines if line.startswith("# python bench/run.py ")]
        assert composed(*command.removeprefix("# python bench/run.py ").split()).models.name == name


@pytest.mark.parametrize("file", sorted(CONF.glob("experiment/*.yaml")), ids=lambda file: file.stem)
def test_experiments_begin_with_their_command(file: Path) -> None:
    package, command = file.read_text().splitlines()[:2]
    assert package == "# @package _global_"  # Hydra reads it from the first line only
    driver = f"bench/run.py experiment={file.stem}"
    if found := re.fullmatch(r"(figure|table)(\w+)", file.stem):
        driver = f"bench/paper.py {found[1]}={found[2]}"
    elif file.stem == "zoo":
        driver = "bench/zoo.py"
    assert command == f"# python {driver}"


@pytest.mark.parametrize("name", SMALL)
def test_small_experiments_run(name: str, tmp_path: Path) -> None:
    command = (CONF / f"experiment/{name}.yaml").read_text().splitlines()[1].removeprefix("# python ").split()
    done = subprocess.run(
        [sys.executable, str(ROOT / command[0]), *command[1:], "logger=none", f"hydra.run.dir={tmp_path}/run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["completed"], summary["failed"]) == (6, 0)
    assert set(summary["routing"]["tokens_by_model"]) == {"small", "large"}
    rows = (tmp_path / "run/requests.jsonl").read_text().splitlines()
    assert len(rows) == 6 and OmegaConf.load(tmp_path / "run/config.yaml").algo.name == summary["algo"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
