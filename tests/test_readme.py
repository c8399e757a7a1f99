"""What the README shows works as it stands."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from omegaconf import OmegaConf

from tokenrouter.core import InputError, Request, SamplingParams
from tokenrouter.interface import Algorithm, LogitsOutput, RequestView, StepResult

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(found)


@pytest.fixture
def algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Algorithm:
    """The README's algorithm, its module standing where the README puts it."""
    (tmp_path / "router.py").write_text(block("python"))
    spec = spec_from_file_location("zoo.margin.router", tmp_path / "router.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "zoo.margin", ModuleType("zoo.margin"))
    monkeypatch.setitem(sys.modules, "zoo.margin.router", module)
    config = OmegaConf.to_container(OmegaConf.create({"algo": OmegaConf.create(block("yaml"))}), resolve=True)
    assert isinstance(config, dict)
    algo = config["algo"]
    return Algorithm(algo["name"], tuple(algo["roles"]), algo["roles"], algo["entry"])


def view(**params: object) -> RequestView:
    return RequestView(
        Request("r", 0, 0, 0, SamplingParams(seed=0, max_tokens=8), params, ids=[1], prompt_len=1, known=[1, 0]),
        proposal=2,
    )


def test_the_router_leaves_where_two_tokens_are_close(algorithm: Algorithm) -> None:
    logits = torch.tensor([[0.55, 0.44, 0.01], [0.7, 0.2, 0.1], [0.7, 0.2, 0.1]]).log()
    requests = [view(), view(), view(threshold=0.6)]
    result = StepResult(logits.argmax(-1), LogitsOutput(logits, None), requests)
    router = algorithm.router("small")
    destinations = router.route(result).tolist()
    assert destinations == [1, 0, 1]
    assert algorithm.roles[algorithm.destination_role(router.role, destinations[0])] == "large"
    requests[0].destination = 1
    assert router.send(requests[0]).token_ids == [1]  # the prompt, without the discarded proposal


def test_its_threshold_is_checked_and_has_words(algorithm: Algorithm) -> None:
    threshold = algorithm.params["threshold"]
    assert threshold.parse("never") == -torch.inf
    assert threshold.parse("always") == torch.inf
    with pytest.raises(InputError, match=r"threshold=2: allowed is a number in \[0, 1\]"):
        threshold.parse(2)


def test_named_files_and_targets_exist() -> None:
    for path in re.findall(r"`((?:tokenrouter|zoo|bench|conf|tests)/[\w./]+)`", README):
        assert (ROOT / path).exists() or "margin" in path, path
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
