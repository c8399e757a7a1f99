"""The check of a GPU machine, as far as a CPU can tell: what it would run there, and its measuring at tiny shapes."""
from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from bench import gpu_check
from bench.config import validate

ROOT = Path(__file__).parents[2]
GB = 1024**3


@pytest.mark.parametrize(("free_gb", "large", "skipped"), [(138, "Qwen3-32B", 0), (78, "Qwen3-32B", 0),
                                                           (70, "Qwen3-14B", 1), (23, "Qwen3-4B", 3)])
def test_shapes_get_smaller_with_the_memory(free_gb: int, large: str, skipped: int) -> None:
    shapes, words = gpu_check.choose(free_gb * GB)
    expected = next(shape for shape in gpu_check.LARGE if shape.name == large)
    assert [role for role, _ in shapes] == ["small", "large"]
    assert shapes[1][1].hidden_size == expected.hidden and shapes[1][1].num_hidden_layers == expected.layers
    assert len(words) == skipped and all("needs" in word for word in words)


def test_nothing_fits() -> None:
    with pytest.raises(SystemExit, match=r"Qwen3-1\.7B: needs"):
        gpu_check.choose(9 * GB)


@pytest.mark.parametrize("cuda", [True, False])
def test_the_ladder_is_made_of_valid_runs(cuda: bool, tmp_path: Path) -> None:
    runs = dict(gpu_check.ladder(tmp_path, tmp_path, cuda))
    assert len(runs) == len(gpu_check.LADDER) * 3 * (2 if cuda else 1)
    for command in runs.values():
        overrides = [word for word in command[2:] if not word.startswith("hydra.run.dir")]
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            config = validate(OmegaConf.to_container(  # type: ignore[arg-type]
                compose("config", overrides), resolve=True, throw_on_missing=True))
        assert config.algo.name == "replay" and config.models.load_format == "dummy"


def test_step_times_at_tiny_shapes(tmp_path: Path) -> None:
    role, config = gpu_check.tiny()[0]
    config.save_pretrained(tmp_path / role)
    times = gpu_check.step_times(tmp_path / role, "cpu", "float32", "off")
    assert len(times["ms"]) == len(gpu_check.BATCHES) * (1 + len(gpu_check.EXTENDS))
    assert all(ms > 0 for ms in times["ms"].values())
    assert times["ran"]["graph_decodes"] == 0 < times["ran"]["eager_steps"]
