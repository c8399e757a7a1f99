"""Algorithms that are not in this repository: found by entry point, or written against the paper's figure."""
from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from tests.zoo.algorithms import pair
from tokenrouter.core import InputError
from tokenrouter.interface import Algorithm, BaseRouter, PeerReq
from zoo import conformance as kit
from zoo.cases import Case
from zoo.conformance import conformance
from zoo.reference import compare
from zoo.setup import Setup

ROOT = Path(__file__).parents[2]

ROUTER = '''
import torch

from tokenrouter.interface import BaseRouter, Param, StepResult


class MarginSmall(BaseRouter):
    params = (Param("threshold", 0.2, 0.0, 1.0, "gap of probabilities, below it a proposal is routed", sends="below"),)

    def route(self, result: StepResult) -> torch.Tensor:
        best = result.logits_output.next_token_logits.float().softmax(-1).topk(2).values
        return (best[:, 0] - best[:, 1] < self.values("threshold", result)).long()
'''
YAML = '''
name: far_margin
entry: small
threshold: 0.25
roles:
  small: {_target_: far_margin.router.MarginSmall, threshold: "${algo.threshold}"}
  large: {_target_: tokenrouter.interface.ReturnAfterOne}
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path, as pip leaves it, with a package that registers an algorithm."""
    package = tmp_path / "far_margin"
    (package / "algo").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "router.py").write_text(ROUTER)
    (package / "algo" / "far_margin.yaml").write_text(YAML)
    metadata = tmp_path / "far_margin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: far-margin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tokenrouter.algorithms]\nfar_margin = far_margin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_algorithm_by_entry_point_is_a_choice_like_any_other(installed: Path, tmp_path: Path) -> None:
    algorithm = Setup.compose(["algo=far_margin", "algo.threshold=0.5"]).algorithm
    assert type(algorithm.router("small")).__module__ == "far_margin.router"
    assert algorithm.router("small").threshold == 0.5  # type: ignore[attr-defined]
    case = Case.compose("far_margin", None, tmp_path / "models")
    for check in (kit.alone_is_the_model, kit.equal_to_the_reference):
        check(case)


def test_without_its_package_it_is_none() -> None:
    with pytest.raises(InputError, match="algo/far_margin"):
        Setup.compose(["algo=far_margin"])


def test_the_benchmarks_command_finds_it_too(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "run.py"), "algo=far_margin", "--cfg", "job", "--resolve"], cwd=installed,
        env={"PYTHONPATH": f"{ROOT}:{installed}", "PATH": "/usr/bin:/bin", "HOME": str(installed)},
        capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    small = OmegaConf.create(done.stdout).algo.roles.small
    assert small == {"_target_": "far_margin.router.MarginSmall", "threshold": 0.25}


class RStitchSLM(BaseRouter):
    # The paper's Figure 3, word for word but for the arguments that it leaves out.
    def route(self, result):
        # Delegate high-entropy tokens to the LLM peer; keep the rest local.
        probs = result.logits_output.next_token_logits.softmax(dim=-1)
        entropy = -(probs * probs.log()).sum(-1) / math.log(probs.shape[-1])
        destination = torch.zeros_like(entropy, dtype=torch.long)
        destination[entropy > self.tau] = self.peer_idx
        return destination.cpu()

    def send(self, req) -> PeerReq:
        # Drop the just-decoded uncertain token; ask the LLM to regenerate.
        token_ids = req.origin_input_ids + req.output_ids[:-1]
        peer_anchor = req.peer_locs[self.peer_idx] or 0
        return PeerReq(rid=req.rid, token_ids=token_ids[peer_anchor:], loc=len(token_ids), finished=req.finished())


FIGURE_3 = Algorithm("figure_3", ("small", "large"), {
    "small": {"_target_": "tests.zoo.test_third_party.RStitchSLM", "tau": 0.6, "peer_idx": 1},
    "large": {"_target_": "tokenrouter.interface.ReturnAfterOne"},
}, "small")


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case.over_random_models(FIGURE_3, tmp_path_factory.mktemp("figure"))


@pytest.mark.parametrize("check", [kit.equal_to_the_reference, kit.evicted_while_away, kit.peers_get_what_they_lack,
                                   kit.answers_are_destinations], ids=lambda check: check.__name__)
def test_a_router_of_the_papers_figure_runs_as_it_is(figure: Case, check: kit.Check) -> None:
    check(figure)


def test_and_writes_what_the_zoos_own_writes(figure: Case, tmp_path: Path) -> None:
    own = Case.over_random_models(pair(threshold=0.6), tmp_path)
    for job, got in zip(figure.jobs(), figure.truths, strict=True):
        assert compare(got, own.truth(job)).kind == "equal"


test_the_template = conformance("template")
