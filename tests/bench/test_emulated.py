"""The driver on emulated models: from the command's configuration to a result that says that it is emulated."""
from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

from bench.driver import execute
from bench.plan import prepare
from tests.bench.conftest import ROOT
from tokenrouter.core import InputError

EMULATED = ["algo=replay", "engine=emulated", "models=emulated", "workload=random", "logger=none"]


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        values: Any = OmegaConf.to_container(compose("config", list(overrides)), resolve=True, throw_on_missing=True)
    return dict(values)


def test_prompts_and_lengths_are_drawn_and_keyed() -> None:
    ranges = ["workload.input_tokens=[3,6]", "workload.output_tokens=[10,12]", "load.num_requests=200"]
    plan = prepare(composed(*EMULATED, *ranges))
    assert {len(job.prompt_ids) for job in plan.jobs} == {3, 4, 5, 6}
    assert {job.sampling.max_tokens for job in plan.jobs} == {10, 11, 12}
    assert len({job.sampling.seed for job in plan.jobs}) == 200
    again, other = prepare(composed(*EMULATED, *ranges)), prepare(composed(*EMULATED, *ranges, "workload.seed=1"))
    assert again.jobs == plan.jobs and again.workload.data_source == plan.workload.data_source
    assert [job.prompt_ids for job in other.jobs] != [job.prompt_ids for job in plan.jobs]
    assert other.workload.data_source != plan.workload.data_source


def test_max_tokens_replaces_the_range() -> None:
    plan = prepare(composed(*EMULATED, "workload.max_tokens=7"))
    assert {job.sampling.max_tokens for job in plan.jobs} == {7} and plan.workload.max_tokens == 7


@pytest.mark.parametrize(("overrides", "said"), [
    (["models=tiny"], "models.roles.small.path='zoo/models/small': allowed is a model that engine.options.models"),
    (["engine.options.models.small.latency_ms=0"], "engine.options.models.small.latency_ms=0"),
    (["engine.options.models.large.latency_ms=nan"], "engine.options.models.large.latency_ms=nan: allowed is "),
    (["models.roles.small.revision=main"], "models.roles.small.revision='main': allowed with "),
    (["engine.options.contention=0.9"], "engine.options.contention=0.9"),
    (["+engine.options.nope=1"], "engine.options.nope=1: unknown; allowed is one of models, contention, "),
    (["engine.capacity_tokens=null"], "engine.capacity_tokens=None: allowed is a number of tokens"),
    (["engine.capacity_tokens=400"], "engine.capacity_tokens=400: is room for 400 tokens of KV; allowed is room for "),
    (["workload=aime"], "models.tokenizer=None: allowed is a folder or hub id, as the prompts of workload=aime"),
    (["workload.input_tokens=[9,3]"], "workload.input_tokens=[9, 3]: allowed is the least and the most"),
    (["workload.output_tokens=[0,3]"], "workload.output_tokens=[0, 3]: allowed is a list of 2: a whole number >= 1"),
    (["workload.input_tokens=[3]"], "workload.input_tokens=[3]: allowed is a list of 2: a whole number >= 1"),
    ([f"workload.seed={2**63}"], f"workload.seed={2**63}: allowed is a whole number >= 0 and <= {2**63 - 1}"),
    (["workload.vocab_size=1000"], "prompts: hold the token id "),
    (["algo.P=[[0.5,0.4],[1,0]]"], "algo.P[0]: [0.5, 0.4] sums to 0.9"),
    (["algo.P=[[1]]", "algo.C=[[1]]"], "algo.P: has 1 rows; allowed is 2, one for each of ['small', 'large']"),
    (["algo.profile=nope.json"], "algo.profile='nope.json': cannot be read"),
])  # fmt: skip
def test_bad_input_is_named_before_anything_starts(overrides: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        prepare(composed(*EMULATED, *overrides))
    assert str(caught.value).startswith(said)


def test_a_run_on_emulated_models(tmp_path: Path) -> None:
    """Real processes, real messages, models without weights."""
    values = composed(
        *EMULATED, "algo=replay_me", "load.num_requests=8", "load.concurrency=4", "workload.output_tokens=[20,40]",
        "batching=fixed", "batching.B=[1,2,1]", "engine.options.realtime=false", "engine.options.contention=1.5",
        *(f"engine.options.models.{name}.latency_ms=0.2" for name in ("small", "medium", "large")))
    trace = execute(values, tmp_path / "run", Console(file=io.StringIO()), Console(file=io.StringIO()))
    assert trace.stopped is None
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "run/requests.jsonl").read_text().splitlines()]
    assert (summary["completed"], summary["failed"], summary["engine"]) == (8, 0, "emulated")
    assert summary["provenance"]["evidence"] == "emulated" and summary["quality"] is None
    assert all(20 <= row["output_tokens"] <= 40 and row["finish_reason"] == "length" for row in rows)
    assert set(summary["routing"]["tokens_by_model"]) == {"small", "medium", "large"}
    changes = sum(a != b for row in rows for a, b in zip(row["token_models"], row["token_models"][1:], strict=False))
    assert summary["routing"]["handoffs"] == changes > 0  # every proposal is kept: each change of author is a handoff
    assert set(summary["routing"]["timeouts"].values()) == {0}
