"""summary.json (schema 1): a run in figures, whether they count, and where they come from."""
from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bench.metrics import Steady, accuracy_interval, goodput, latencies, pass_at_k, spread, window
from bench.plan import Plan
from bench.predict import measured_tables, nominal_tables, predict, threshold_changes, usual_threshold
from bench.provenance import provenance
from bench.records import Record, Trace
from bench.validity import judge
from tokenrouter.cluster.models import revision
from tokenrouter.engine.base import ModelInfo
from zoo.tasks.grade import Grade

SCHEMA_VERSION = 1
LARGE = "large"  # the role of the LLM
_BRIEF = ("mean", "p50", "p99")


def summarise(
    plan: Plan, trace: Trace, models: Sequence[ModelInfo], reports: Sequence[dict[str, Any]],
    grades: Sequence[Grade | None], command: str | None,
) -> dict[str, Any]:
    """`reports`: Service.stats(), empty if the system gives none. `grades`: one a record, None if it was not graded."""
    config, records = plan.config, trace.records
    duration = max(trace.ended - trace.began, 1e-9)
    found = window(records, config.load.mode, config.load.concurrency)
    correct = [grade.correct if grade else None for grade in grades]
    return {
        "schema_version": SCHEMA_VERSION,
        "algo": config.algo.name,
        "threshold": config.algo.threshold,
        "workload": plan.workload.name,
        "system": config.system.name,
        "engine": config.engine.kind,
        "models": _models(plan, models),
        "sampling": msgspec.to_builtins(config.sampling) | {"max_tokens": plan.workload.max_tokens},
        "hardware": {"device": config.hardware.device, "threads": config.hardware.threads, "cores": os.cpu_count()},
        "load": _load(plan, trace),
        **figures(records, duration, found, msgspec.structs.asdict(config.load.slo)),
        "routing": _routing(plan, trace, models, reports, found.output_throughput),
        "quality": quality(plan.workload.grader, records, correct) if _has_answers(plan) else None,
        "validity": _validity(plan, trace, found, duration),
        "provenance": provenance(plan, command),
    }


def figures(
    records: Sequence[Record], duration_s: float, window: Steady, slo: Mapping[str, float | None],
) -> dict[str, Any]:
    """What the requests alone say of a run that took `duration_s`."""
    done = [record for record in records if record.completed]
    output = sum(len(record.token_ids) for record in done)
    return {
        "completed": len(done),
        "failed": len(records) - len(done),
        "duration_s": duration_s,
        "total_input_tokens": sum(len(record.job.prompt_ids) for record in done),
        "total_output_tokens": output,
        "output_throughput": output / duration_s,
        "request_throughput": len(done) / duration_s,
        "request_goodput": goodput(records, duration_s, slo),
        "steady": {"duration_s": window.duration_s, "output_throughput": window.output_throughput},
        **latencies(records),
    }


def _models(plan: Plan, models: Sequence[ModelInfo]) -> dict[str, Any]:
    specs = plan.cluster.models[: len(plan.roles)]  # copies side by side repeat them
    return {
        role: {
            "id": plan.config.models.roles[role].path,
            "revision": revision(spec.path, spec.revision),
            "params": info.num_params,
            "dtype": info.dtype,
        }
        for role, spec, info in zip(plan.roles, specs, models, strict=True)
    }


def _load(plan: Plan, trace: Trace) -> dict[str, Any]:
    load = plan.config.load
    return {
        "mode": load.mode,
        "concurrency": load.concurrency,
        "request_rate": load.request_rate,
        "num_requests": load.num_requests,
        "warmup": len(plan.warmup),
        "seed": load.seed,
        "slo": msgspec.structs.asdict(load.slo),
        "client_busy": trace.client_busy,
        "others_busy": trace.others_busy,
        "prefix_cache": "holds the warm-up's prompts, which are of other problems while the data set lasts",
    }


def _validity(plan: Plan, trace: Trace, window: Steady, duration: float) -> dict[str, Any]:
    return judge(
        mode=plan.config.load.mode,
        completed=sum(record.completed for record in trace.records),
        failed=sum(not record.completed for record in trace.records),
        duration_s=duration,
        concurrency=plan.config.load.concurrency,
        steady_concurrency=window.concurrency,
        client_busy=trace.client_busy,
        others_busy=trace.others_busy,
        stopped=trace.stopped,
    )


def _routing(
    plan: Plan, trace: Trace, models: Sequence[ModelInfo], reports: Sequence[dict[str, Any]], steady_throughput: float
) -> dict[str, Any]:
    """Who wrote what, and what each subserver did meanwhile (null where the system does not report it)."""
    routing = authors(trace.records, plan.roles)
    total = sum(routing["tokens_by_model"].values())
    routing["discarded_tokens"] = sum(record.discarded for record in trace.records if record.completed)
    by_role = dict(zip(plan.roles, reports, strict=True)) if reports else {}
    transitions, P, C = transition_matrices(plan.config.algo.name, len(plan.roles), reports)
    return routing | {
        "P": P,
        "C": C,
        "step_ms": {role: _brief(report["step_ms"]) for role, report in by_role.items()},
        "batch_size_histogram": {
            role: {str(size): n for size, n in sorted(Counter(report["batch_size"]).items())}
            for role, report in by_role.items()},
        "busy_fraction": {role: report["busy_s"] / report["duration_s"] for role, report in by_role.items()},
        "compute_share_of_busy": {
            role: report["compute_s"] / report["busy_s"] if report["busy_s"] else None
            for role, report in by_role.items()},
        "admission_delay_ms": {role: _brief(report["admission_ms"]) for role, report in by_role.items()},
        "threshold_B": {role: usual_threshold(report) for role, report in by_role.items()},
        "threshold_B_over_time": {role: threshold_changes(report) for role, report in by_role.items()},
        **_predictions(plan, P, C, list(by_role.values()), steady_throughput),
        **{name: {role: report.get(name, 0) for role, report in by_role.items()}
           for name in ("timeouts", "deadlines", "holds", "evictions", "preemptions")},
        "engine": {role: report["engine"] for role, report in by_role.items()},
        "params_per_token": _params_per_token(models, transitions, total),
        "breakdown_ms": {role: report["breakdown_ms"] for role, report in by_role.items() if "breakdown_ms" in report},
    }


def authors(records: Sequence[Record], roles: Sequence[str]) -> dict[str, Any]:
    """Who wrote what of the completed requests."""
    done = [record for record in records if record.completed]
    written = Counter(role for record in done for role in record.roles)
    tokens = {role: written[i] for i, role in enumerate(roles)}
    total, handoffs = sum(tokens.values()), sum(record.handoffs for record in done)
    return {
        "tokens_by_model": tokens,
        "llm_token_fraction": tokens.get(LARGE, 0) / total if total else None,
        "handoffs": handoffs,
        "handoffs_per_100_tokens": 100 * handoffs / total if total else None,
    }


def _predictions(plan: Plan, P: Any, C: Any, reports: Sequence[dict[str, Any]], measured: float) -> dict[str, Any]:
    """Tokens/s in the steady window by the throughput model, for the P and C of this run and the step times that
    emulated models were told to take, or else those measured; and, beside it, for those measured."""
    B = [usual_threshold(report) for report in reports]
    in_service = predict(plan.config, plan.roles, P, C, measured_tables(reports, plan.config.load.concurrency), B)
    nominal = nominal_tables(plan.config, plan.roles)
    main = predict(plan.config, plan.roles, P, C, nominal, B) if nominal else in_service
    found = main.record(measured)
    return {
        "predicted_throughput": found["throughput"],
        "predicted_ratio": found["ratio"],
        "prediction": {"step_times": "nominal" if nominal else "measured", "B": B, **found},
        "prediction_in_service": in_service.record(measured),
    }


def transition_matrices(
    algorithm: str, roles: int, reports: Sequence[dict[str, Any]]
) -> tuple[list[list[int]], list[list[float]] | None, list[list[float]] | None]:
    """Counts, P and C, [M][M] from model i to model j: P the share of i's routed steps that lead to j (rows sum to 1),
    C the mean tokens committed at such a step (0 where there was none). P and C are None without reports, or if some
    model made no step."""
    zero = [0] * roles
    counts = [list(report["transitions"].get(algorithm, zero)) for report in reports]
    commits = [list(report["commits"].get(algorithm, zero)) for report in reports]
    if not counts or not all(map(sum, counts)):
        return counts, None, None
    P = [[n / sum(row) for n in row] for row in counts]
    C = [[c / n if n else 0.0 for c, n in zip(*rows, strict=True)] for rows in zip(commits, counts, strict=True)]
    return counts, P, C


def _params_per_token(models: Sequence[ModelInfo], transitions: list[list[int]], tokens: int) -> float | None:
    """Parameters activated for an output token: each model's proposals, discarded ones too, times its size."""
    if not transitions or not tokens:
        return None
    return sum(info.num_params * sum(row) for info, row in zip(models, transitions, strict=True)) / tokens


def _brief(values: Sequence[float]) -> dict[str, float | None]:
    return spread(values, _BRIEF)


def _has_answers(plan: Plan) -> bool:
    return any(job.task.expected is not None for job in plan.jobs)


def quality(grader: str, records: Sequence[Record], grades: Sequence[bool | None]) -> dict[str, Any]:
    """Accuracy over the graded requests; all null if nothing was graded."""
    graded = [(record.job.task.id, grade) for record, grade in zip(records, grades, strict=True) if grade is not None]
    found: dict[str, Any] = {"metric": f"accuracy ({grader})", "value": None, "n": len(graded)}
    if not graded:
        return found | {"ci95": None, "pass_at_k": None}
    problems, correct = zip(*graded, strict=True)
    return found | {
        "value": statistics.fmean(correct),
        "ci95": list(accuracy_interval(problems, correct)),
        "pass_at_k": pass_at_k(problems, correct),
    }
