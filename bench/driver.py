"""One run from its configuration to its files: check, start, warm up, measure, grade, write, show."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.curves import curves, glances
from bench.files import request_rows, texts_of, write_config, write_requests, write_summary
from bench.launches import write_launches
from bench.load import LoadGenerator, arrivals
from bench.logger import make_logger
from bench.plan import Plan, prepare
from bench.progress import ProgressView, waiting
from bench.records import Progress, Trace
from bench.report import write_report
from bench.summary import summarise
from bench.systems import Service, serve
from bench.table import result_table
from bench.timeline import write_perfetto
from tokenrouter.core import InputError
from tokenrouter.engine.base import ModelInfo
from zoo.tasks.grade import Grade, Grader


@dataclass
class Measurement:
    """What the running system gave: `reports` are Service.stats(), empty if it could not or would not give them."""

    trace: Trace
    models: list[ModelInfo]
    reports: list[dict[str, Any]]


def execute(
    values: Mapping[str, Any], folder: Path, out: Console, err: Console, command: str | None = None
) -> Trace:
    """Run the resolved configuration `values`, which `command` gave; its files go to `folder`.

    A run that failed or was interrupted leaves what it has, marked invalid: see the trace's `stopped`. Raises
    InputError for bad input, and RuntimeError or KeyboardInterrupt when it ends before anything was measured.
    """
    with waiting(err, "problems and tokenizer"):
        plan = prepare(values)
        system = serve(plan.config, plan.cluster)
    try:
        write_config(folder, values)
    except OSError as error:
        raise InputError(f"hydra.run.dir={folder}: {error.strerror}; allowed is a folder that can be written") from None
    log_to = f"logger={plan.config.logger.kind}"
    with waiting(err, log_to):
        logger = make_logger(
            plan.config.logger, values, folder, lambda line: err.print(f"warning: {line}", style="yellow"))
    out.print(f"{plan.config.algo.name} on {plan.workload.data_source}, {len(plan.jobs)} requests; starting "
              f"{len(plan.roles)} model(s)", highlight=False, soft_wrap=True)
    with closing(logger):
        with ExitStack() as stopped, ExitStack() as running:
            with waiting(err, f"{', '.join(plan.roles)} to start"):
                service = running.enter_context(system)
            stopping = waiting(err, f"{', '.join(plan.roles)} to stop")
            running.callback(stopped.enter_context, stopping)  # just before the system is left
            view = running.enter_context(ProgressView(err))

            def watch(now: Progress) -> None:
                view(now)
                logger.live(now, lambda: glances(service, plan.roles))

            measured = measure(plan, service, watch)
        if isinstance(measured.trace.stopped, RuntimeError):  # said at once: grading what there is takes a moment
            err.print(f"error: {measured.trace.stopped}", highlight=False, markup=False, soft_wrap=True)
        with waiting(err, "grades and report"):
            rows, summary = conclude(plan, measured, folder, command)
        with waiting(err, log_to):
            logger.finish(summary, rows, curves(measured.trace, measured.reports, plan.roles), folder)
    out.print(result_table(summary))
    out.print(f"files: {folder}", highlight=False, markup=False, soft_wrap=True)  # whole, to be copied
    return measured.trace


def measure(plan: Plan, service: Service, watch: Callable[[Progress], None]) -> Measurement:
    """Warm up in a closed loop of the run's own concurrency, then send the load."""
    load = plan.config.load
    loop = LoadGenerator(service, plan.config.algo.name, load.concurrency, load.stall_s, watch)
    warm = loop.run("warming up", plan.warmup)
    if warm.stopped is not None:
        raise warm.stopped
    service.reset_stats()
    trace = loop.run("measuring", plan.jobs, arrivals(load))
    reports: list[dict[str, Any]] = []
    try:
        if not isinstance(trace.stopped, RuntimeError):
            reports = service.stats()
    except (RuntimeError, KeyboardInterrupt) as stopped:  # what was measured stands
        trace.stopped = trace.stopped or stopped
    return Measurement(trace, list(service.models), reports)


def conclude(
    plan: Plan, measured: Measurement, folder: Path, command: str | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Grade and write; returns what requests.jsonl and summary.json hold."""
    trace = measured.trace
    texts = texts_of(trace.records, plan.tokenizer)
    grades: list[Grade | None] = [None] * len(texts)
    write_requests(folder, request_rows(trace, texts, grades))  # whatever happens to the grading
    try:
        grades = grade(plan, trace, texts)
    except KeyboardInterrupt as stopped:
        trace.stopped = trace.stopped or stopped
    rows = request_rows(trace, texts, grades)
    summary = summarise(plan, trace, measured.models, measured.reports, grades, command)
    write_requests(folder, rows)
    write_summary(folder, summary)
    write_launches(folder, measured.reports)
    write_perfetto(folder / "timeline.json.gz", trace, measured.reports, plan.roles)
    write_report(folder, summary, rows, trace, measured.reports, plan.roles, plan.tokenizer)
    return rows, summary


def grade(plan: Plan, trace: Trace, texts: list[str]) -> list[Grade | None]:
    """Grades of the completed requests; None for the others."""
    done = [i for i, record in enumerate(trace.records) if record.completed]
    with Grader(plan.workload.grader) as grader:
        given = grader.grade_all([(texts[i], trace.records[i].job.task.expected) for i in done])
    grades: list[Grade | None] = [None] * len(texts)
    for i, one in zip(done, given, strict=True):
        grades[i] = one
    return grades
