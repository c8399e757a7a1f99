"""The driver over a service in this process: files, figures, failures."""
from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from rich.console import Console

import bench.driver
from bench import run as command
from bench.config import LoggerConfig
from bench.driver import execute
from bench.logger import make_logger
from bench.plan import prepare
from bench.records import Progress, Trace
from bench.table import result_rows
from bench.validity import comparable_by
from tests.bench.conftest import Compose
from tests.bench.fake import FakeService, until_told
from tokenrouter.core import InputError
from zoo.models.tokenizer import build

NAMES = [f"{stat}_{name}_ms" for name in ("ttft", "tpot", "itl", "icl", "e2el")
         for stat in ("mean", "median", "std", "p90", "p95", "p99")]  # fmt: skip


class Run:
    """What a run over a FakeService left."""

    def __init__(
        self, values: dict[str, Any], service: FakeService, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @contextmanager
        def serve(config: Any, spec: Any) -> Iterator[FakeService]:
            yield service

        monkeypatch.setattr(bench.driver, "serve", serve)
        self.folder, self.out, self.err = folder, io.StringIO(), io.StringIO()
        consoles = Console(file=self.out, width=100), Console(file=self.err, width=300)
        self.trace: Trace = execute(values, folder, *consoles)
        self.summary = json.loads((folder / "summary.json").read_text())
        self.rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


@pytest.fixture
def answer() -> list[int]:
    return list(build(50)("so \\boxed{7}")["input_ids"])


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Three problems, of which \\boxed{7} solves one."""
    file = tmp_path / "problems.jsonl"
    rows = [{"id": f"q{n}", "problem": f"{n} + 1?", "answer": n + 1} for n in (5, 6, 7)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def load(problems: Path) -> list[str]:
    return [f"workload.path={problems}", "load.num_requests=6", "load.concurrency=2"]


@pytest.fixture
def ran(composed: Compose, load: list[str], answer: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(composed(*load), FakeService(answer), tmp_path / "run", monkeypatch)


def test_warm_up_is_sent_first_and_not_counted(ran: Run, composed: Compose, load: list[str], answer: list[int],
                                               tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService(answer)
    run = Run(composed(*load, "load.warmup=2"), service, tmp_path / "again", monkeypatch)
    assert service.resets == 1 and len(service.sent) == 4 + 6
    assert run.summary["completed"] == 6 and run.summary["load"]["warmup"] == 4
    seeds = [row["seed"] for row in run.rows]
    assert seeds == [row["seed"] for row in ran.rows]  # what is measured does not depend on the warm-up
    assert not set(seeds) & {sampling.seed for _, sampling in service.sent[:4]}


def test_summary_has_the_schema(ran: Run) -> None:
    summary = ran.summary
    assert summary["schema_version"] == 1
    assert (summary["algo"], summary["workload"], summary["system"]) == ("entropy", "aime", "tokenrouter")
    assert set(NAMES) <= set(summary)
    assert set(summary["models"]["small"]) == {"id", "revision", "params", "dtype"}
    assert {"mode", "concurrency", "request_rate", "num_requests"} <= set(summary["load"])
    assert {"duration_s", "total_input_tokens", "request_throughput", "steady", "failed"} <= set(summary)
    assert set(summary["steady"]) == {"duration_s", "output_throughput"}
    assert {"tokens_by_model", "llm_token_fraction", "handoffs", "handoffs_per_100_tokens", "discarded_tokens", "P",
            "C", "step_ms", "batch_size_histogram", "busy_fraction", "admission_delay_ms", "threshold_B",
            "predicted_throughput", "predicted_ratio", "params_per_token"} <= set(summary["routing"])
    assert set(summary["quality"]) == {"metric", "value", "n", "ci95", "pass_at_k"}
    assert {"valid", "kind", "reasons"} <= set(summary["validity"])
    assert {"evidence", "data_source", "config_hash", "git_sha", "dirty", "host", "cpu", "gpu", "python", "torch",
            "engine_version", "date"} <= set(summary["provenance"])


def test_all_at_once_with_bounds_that_some_keep(composed: Compose, load: list[str], answer: list[int], tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService(answer)
    run = Run(composed(*load, "load=batch", "load.slo.e2el_ms=1e6"), service, tmp_path / "batch", monkeypatch)
    summary = run.summary
    assert service.most_open == 6 and summary["completed"] == 6
    assert (summary["load"]["mode"], summary["load"]["slo"]["e2el_ms"]) == ("batch", 1e6)
    assert summary["request_goodput"] == summary["request_throughput"]
    assert summary["steady"]["output_throughput"] == pytest.approx(summary["output_throughput"], rel=0.2)
    assert summary["routing"]["prediction"]["method"] == "not a closed loop"


def test_counts_and_routing(ran: Run, answer: list[int]) -> None:
    summary, routing, n = ran.summary, ran.summary["routing"], len(answer)
    assert summary["total_output_tokens"] == 6 * n
    assert summary["output_throughput"] == pytest.approx(6 * n / summary["duration_s"])
    assert routing["tokens_by_model"] == {"small": 6 * (n // 2), "large": 6 * (n - n // 2)}
    assert routing["handoffs"] == 12 and routing["discarded_tokens"] == 6
    assert routing["batch_size_histogram"] == {"small": {"1": 1, "2": 2}, "large": {"1": 1, "2": 2}}
    assert routing["busy_fraction"] == {"small": 0.5, "large": 0.5}


def test_routing_matrices(composed: Compose, load: list[str], answer: list[int], tmp_path: Path,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService(answer)
    reports = service.stats()
    for report in reports:
        for kind in ("transitions", "commits"):
            report[kind] = {"entropy": report[kind]["r2r"]}
    service.stats = lambda: reports  # type: ignore[method-assign]
    routing = Run(composed(*load), service, tmp_path / "run", monkeypatch).summary["routing"]
    assert routing["P"] == [[6 / 8, 2 / 8], [3 / 4, 1 / 4]]
    assert routing["C"] == [[4 / 6, 0.0], [1.0, 1.0]]
    assert routing["params_per_token"] == pytest.approx((8 * 100 + 4 * 1000) / (6 * len(answer)))


def test_quality_and_records(ran: Run) -> None:
    quality = ran.summary["quality"]
    assert quality["value"] == pytest.approx(1 / 3) and quality["n"] == 6
    assert quality["ci95"] == [0, 1]  # over three problems, each always right or always wrong
    assert quality["pass_at_k"] == {"1": pytest.approx(1 / 3), "2": pytest.approx(1 / 3)}
    assert {(row["id"], row["grade"]) for row in ran.rows} == {("q5", False), ("q6", True), ("q7", False)}
    row = ran.rows[0]
    assert row["text"] == "so \\boxed{7}" and row["answer"] == "7" and row["error"] is None
    assert set(row) == {
        "id", "sample", "seed", "input_tokens", "output_tokens", "token_ids", "token_models", "token_signals", "text",
        "finish_reason", "start_s", "ttft_ms", "e2el_ms", "handoffs", "grade", "answer", "expected", "error"}
    assert len({row["seed"] for row in ran.rows}) == 6 and {row["sample"] for row in ran.rows} == {0, 1}


def test_a_short_run_says_that_it_is_one(ran: Run) -> None:
    validity = ran.summary["validity"]
    assert not validity["valid"] and validity["kind"] == "smoke"
    assert any("a full run takes at least 60 s" in reason for reason in validity["reasons"])


def test_the_table_names_data_validity_and_files(ran: Run) -> None:
    text = ran.out.getvalue()
    for part in ("file:problems.jsonl@", "tok/s", "ttft", "p99", "handoffs per 100 tokens", "33.3%", "smoke"):
        assert part in text
    assert "\x1b" not in text  # no control codes where there is no terminal
    assert text.endswith(f"\nfiles: {ran.folder}\n")  # whole, however long
    assert str(ran.folder) not in (ran.folder / "report.html").read_text()


def test_resolved_configuration_runs_again(ran: Run, composed: Compose, load: list[str]) -> None:
    again = OmegaConf.to_container(OmegaConf.load(ran.folder / "config.yaml"))
    assert again == composed(*load)


@pytest.mark.parametrize(("stopped", "reason"), [
    (KeyboardInterrupt(), "interrupted"),
    (RuntimeError("subserver 1 died: exit status 3\n  | log"), "failed: subserver 1 died: exit status 3"),
])  # fmt: skip
def test_partial_results_are_kept_and_marked(
    composed: Compose, load: list[str], answer: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    stopped: BaseException, reason: str,
) -> None:
    polls = 2 * len(answer) + len(answer) // 2  # warm-up, one round, half a round
    run = Run(composed(*load), FakeService(answer, stopped, polls), tmp_path / "run", monkeypatch)
    assert run.trace.stopped is stopped
    assert (f"error: {stopped}" in run.err.getvalue()) == isinstance(stopped, RuntimeError)
    assert run.summary["completed"] == 2 and run.summary["failed"] == 2 and len(run.rows) == 4
    assert run.summary["validity"]["reasons"][0] == reason and not run.summary["validity"]["valid"]
    assert run.rows[3]["grade"] is None and run.rows[3]["output_tokens"] > 0


def test_a_system_that_is_gone_at_the_end_does_not_take_the_result_along(
    composed: Compose, load: list[str], answer: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> list[dict[str, Any]]:
        raise RuntimeError("gone")

    service = FakeService(answer)
    service.stats = gone  # type: ignore[method-assign]
    run = Run(composed(*load), service, tmp_path / "run", monkeypatch)
    assert run.summary["completed"] == 6 and run.summary["validity"]["reasons"][0] == "failed: gone"
    assert run.summary["routing"]["P"] is None and run.summary["routing"]["step_ms"] == {}


@pytest.mark.parametrize(("overrides", "said"), [
    (["system=official"], "algo=entropy: has no released code that is known here"),
    (["system=std", "algo=speculative"], "algo=speculative: makes drafts"),
    (["system=std_vllm", "system.options.python=/nowhere"], "system.options.python='/nowhere': cannot be started"),
    (["folder"], "hydra.run.dir=.*: Not a directory; allowed is a folder that can be written"),
])
def test_what_is_refused_starts_nothing_and_leaves_nothing(
    composed: Compose, load: list[str], problems: Path, tmp_path: Path, overrides: list[str], said: str
) -> None:
    folder, out = tmp_path / "run", io.StringIO()
    if overrides == ["folder"]:
        folder, overrides = problems / "run", []
    with pytest.raises(InputError, match=f"^{said}"):
        execute(composed(*load, *overrides), folder, Console(file=out), Console(file=out))
    assert out.getvalue() == "" and not folder.exists()


def test_what_results_are_compared_by(ran: Run, composed: Compose, load: list[str], answer: list[int], tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    def key(name: str, *overrides: str) -> dict[str, Any]:
        run = Run(composed(*load, *overrides), FakeService(answer), tmp_path / name, monkeypatch)
        return comparable_by(run.summary)

    mine = comparable_by(ran.summary)
    assert key("other algorithm and load", "algo.threshold=0.9", "load.seed=3") == mine
    assert key("other sampling", "sampling.temperature=0.5") != mine
    assert key("other length", "workload.max_tokens=15") != mine


def test_a_failing_logger_costs_a_warning(composed: Compose, load: list[str], answer: list[int], tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = Run(composed(*load, "logger=wandb"), FakeService(answer), tmp_path / "run", monkeypatch)
    assert run.summary["completed"] == 6
    assert "warning: logger=wandb: " in run.err.getvalue()


def test_live_speed_is_that_since_the_point_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, float]] = []
    stored = SimpleNamespace(define_metric=lambda *_, **__: None, log=logged.append)
    wandb = SimpleNamespace(init=lambda **_: stored, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    logger = make_logger(LoggerConfig(kind="wandb", mode="offline"), {}, tmp_path, pytest.fail)
    for elapsed_s, tokens in ((0.0, 0), (1.0, 100), (1.5, 180), (2.0, 400), (4.0, 400)):
        logger.live(Progress("measuring", 0, 4, 2, tokens, elapsed_s), dict)
    assert [(point["live/elapsed_s"], point["live/tokens_per_s"]) for point in logged] == [
        (0, 0), (1, 100), (2, 300), (4, 0)]  # the last: a stall


def test_wandb_offline_gets_configuration_summary_requests_and_files(
    composed: Compose, load: list[str], answer: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    run = Run(composed(*load, "logger=wandb"), FakeService(answer), tmp_path / "run", monkeypatch)
    assert "warning" not in run.err.getvalue()
    (stored,) = run.folder.glob("wandb/offline-run-*/run-*.wandb")
    content = stored.read_bytes()
    for part in (b"threshold", b"output_throughput", b"requests.table.json", b"summary.json", b"config.yaml",
                 b"run/tokens_per_s", b"live/batch_size/small", b"live/threshold_B/large"):
        assert part in content
    assert b"live/batch_size/large" not in content  # no step has been made there
    (page,) = run.folder.glob("wandb/offline-run-*/files/media/html/report_*.html")
    assert page.read_text() == (run.folder / "report.html").read_text()
    (table,) = run.folder.glob("wandb/offline-run-*/files/media/table/result_*.table.json")
    assert json.loads(table.read_text())["data"] == [list(row) for row in result_rows(run.summary)]


def test_only_the_algorithms_models_are_used_in_its_order(composed: Compose) -> None:
    plan = prepare(composed("algo=llm_only", "load.num_requests=1", "load.concurrency=1"))
    assert [model.name for model in plan.cluster.models] == ["large"]
    plan = prepare(composed("load.num_requests=1", "load.concurrency=1", "batching=fixed", "batching.B=[1,3]"))
    assert [model.name for model in plan.cluster.models] == ["small", "large"] and plan.cluster.batching.B == [1, 3]


@pytest.mark.parametrize("failed", [None, RuntimeError("gone")])
def test_every_part_of_a_run_that_takes_long_is_told(
    composed: Compose, load: list[str], answer: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    failed: RuntimeError | None,
) -> None:
    err = io.StringIO()
    starting, stopping = (until_told(err, f"waiting for small, large to {what}: ", monkeypatch)
                          for what in ("start", "stop"))

    @contextmanager
    def serve(config: Any, spec: Any) -> Iterator[FakeService]:
        starting()
        try:
            yield FakeService(answer, failed, 1)
        finally:
            stopping()

    def slow(name: str, what: str) -> None:
        call, slowly = getattr(bench.driver, name), until_told(err, f"waiting for {what}: ", monkeypatch)
        monkeypatch.setattr(bench.driver, name, lambda *given: (slowly(), call(*given))[1])

    monkeypatch.setattr(bench.driver, "serve", serve)
    slow("prepare", "problems and tokenizer")
    slow("make_logger", "logger=none")
    slow("grade", "grades and report")
    slow("write_report", "grades and report")
    slow("curves", "logger=none")  # of the logger's end
    with pytest.raises(RuntimeError, match="gone") if failed else nullcontext():
        execute(composed(*load), tmp_path / "run", Console(file=io.StringIO()), Console(file=err, width=100))
    assert ("grades" in err.getvalue()) is (failed is None)


def test_the_command_says_that_it_waits_for_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    slowly = until_told(err, "waiting for libraries: ", monkeypatch)

    class Driver(ModuleType):
        @property
        def execute(self) -> Any:
            slowly()
            return lambda *given: Trace([], 0.0, 1.0, 0.0, 0.0)

    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setitem(sys.modules, "bench.driver", Driver("bench.driver"))
    assert command.run(OmegaConf.create({}), tmp_path, []) == command.FAILED  # as no request has completed
