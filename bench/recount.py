"""A run's summary against what else its folder holds: figures count that config.yaml and requests.jsonl give again.

Not given again: what only the subservers and the chunks of tokens told (P, C, step times, itl, icl), and how busy the
client and other programs were. A request counts as ended with its last token, and its tokens as evenly spaced.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.metrics import window
from bench.plan import request_seed
from bench.provenance import config_hash, evidence
from bench.records import Job, Record
from bench.summary import authors, figures, quality
from bench.validity import judge
from tokenrouter.config import AlgoConfig, Natural, Positive, convert
from tokenrouter.core import FinishReason, InputError, SamplingParams
from zoo.tasks.rows import Task

ROUNDING = 1e-6
NEAR = 0.01  # of what depends on when requests ended: they do a little after their last token
Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # finite


class _Workload(msgspec.Struct):
    name: str
    max_tokens: int | None = None


class _Model(msgspec.Struct):
    path: str


class _Models(msgspec.Struct):
    name: str
    roles: dict[str, _Model]


class _Engine(msgspec.Struct):
    kind: str


class _System(msgspec.Struct):
    name: str
    only: str | None = None


class _Official(msgspec.Struct):
    path: str | None = None


class _Hardware(msgspec.Struct):
    device: str
    threads: Positive
    link: dict[str, Any] | None = None


class _Load(msgspec.Struct):
    mode: str
    concurrency: Positive
    num_requests: Positive
    seed: Natural
    request_rate: float | None = None
    slo: dict[str, float | None] | None = None  # older runs had none


class Config(msgspec.Struct, kw_only=True):
    """What a run's config.yaml must hold to be compared with its summary, whichever version of conf/ it is of."""

    algo: AlgoConfig
    workload: _Workload
    models: _Models
    engine: _Engine
    system: _System
    load: _Load
    hardware: _Hardware
    sampling: dict[str, Any]
    official: _Official | None = None

    @property
    def roles(self) -> list[str]:
        return [self.system.only] if self.system.only is not None else list(self.algo.roles)

    @property
    def reports(self) -> bool:
        """Whether the system tells what its models did."""
        outside = self.system.name == "official" and self.official is not None and self.official.path is not None
        return self.system.name != "reference" and not outside


def read_config(folder: Path, summary: Mapping[str, Any]) -> Config:
    """The configuration, which is the summary's. InputError, naming the field, if it is not."""
    file = folder / "config.yaml"
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{file}: allowed is the resolved configuration of a run "
                         f"({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise InputError(f"{file}: allowed is a mapping, not {values!r:.80}")
    try:
        config, digest = convert(values, Config), config_hash(values)
    except (InputError, TypeError) as error:  # a type that JSON has not
        raise InputError(f"{file}: {error}") from None
    origin, load = summary["provenance"], config.load
    _compare(file, origin, {"config_hash": digest}, "provenance.")
    _compare(file, summary, {
        "algo": config.algo.name, "threshold": config.algo.threshold, "workload": config.workload.name,
        "system": config.system.name, "engine": config.engine.kind})
    found = {role: model.path for role, model in config.models.roles.items()}
    _compare(file, {"models": {role: model["id"] for role, model in summary["models"].items()}},
             {"models": {role: found.get(role) for role in config.roles}})
    _compare(file, summary["sampling"], config.sampling, "sampling.")
    _compare(file, summary["hardware"], {"device": config.hardware.device, "threads": config.hardware.threads},
             "hardware.")
    _compare(file, summary["load"], {
        name: value for name, value in msgspec.to_builtins(load).items() if (name, value) != ("slo", None)}, "load.")
    _compare(file, origin, {"evidence": evidence(config.engine.kind, config.hardware.link)}, "provenance.")
    return config


class Row(msgspec.Struct):
    """What is counted of a line of requests.jsonl."""

    id: str
    sample: Natural
    seed: int
    input_tokens: Natural
    output_tokens: Natural
    token_ids: list[int]
    token_models: list[int]
    finish_reason: FinishReason | None
    start_s: Time
    ttft_ms: Time | None
    e2el_ms: Time | None
    handoffs: Natural
    grade: bool | None
    expected: str | None
    error: str | None

    def fault(self, roles: int) -> str | None:
        """What no run writes."""
        n = len(self.token_ids)
        if not self.output_tokens == n == len(self.token_models):
            return f"output_tokens={self.output_tokens}: token_ids has {n}, token_models {len(self.token_models)}"
        if any(not 0 <= role < roles for role in self.token_models):
            return f"token_models={sorted(set(self.token_models))}: allowed is below {roles}, the number of models"
        if self.ttft_ms is None or self.e2el_ms is None:
            return None if n == 0 else f"ttft_ms={self.ttft_ms}, e2el_ms={self.e2el_ms}: it has {n} tokens"
        if n == 0 or self.e2el_ms < self.ttft_ms or (n == 1 and self.e2el_ms > self.ttft_ms):
            return f"ttft_ms={self.ttft_ms}, e2el_ms={self.e2el_ms}: not the times of {n} tokens"
        return None

    def record(self) -> Record:
        task = Task(self.id, [], self.expected)
        job = Job(task, self.sample, [0] * self.input_tokens, SamplingParams(seed=self.seed, max_tokens=1))
        record = Record(job, self.start_s, token_ids=self.token_ids, roles=self.token_models, end=self.start_s,
                        reason=self.finish_reason, handoffs=self.handoffs, error=self.error)
        if self.ttft_ms is not None and self.e2el_ms is not None:
            n, first, last = len(self.token_ids), self.start_s + self.ttft_ms / 1e3, self.start_s + self.e2el_ms / 1e3
            record.chunks = [(first, n)] if first == last else [
                *((first + (last - first) * i / (n - 1), 1) for i in range(n - 1)), (last, 1)]
            record.end = last
        return record


def read_rows(file: Path, config: Config) -> list[Row]:
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{file}: allowed is the folder of a run, with its requests.jsonl ({error})") from None
    if len(lines) != config.load.num_requests:
        raise InputError(f"{file}: has {len(lines)} requests; allowed is {config.load.num_requests}, as in config.yaml")
    rows = []
    for index, line in enumerate(lines):
        try:
            row = msgspec.json.decode(line, type=Row)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: line {index + 1}: {error}; allowed is what a run writes") from None
        fault = row.fault(len(config.roles))
        if row.seed != (seed := request_seed(config.load.seed, index)):
            fault = f"seed={row.seed}: allowed is {seed}, that of request {index} with load.seed={config.load.seed}"
        if fault is not None:
            raise InputError(f"{file}: line {index + 1}: {fault}")
        rows.append(row)
    return rows


def recount(folder: Path, summary: Mapping[str, Any], config: Config) -> list[Record]:
    """The run's requests, which give the figures of its summary again. InputError, naming the first that differs."""
    file = folder / "requests.jsonl"
    rows = read_rows(file, config)
    records = [row.record() for row in rows]
    ended = max(record.end for record in records)
    _compare(file, summary, {"duration_s": ended}, near=NEAR)
    whole = window(records, config.load.mode, config.load.concurrency)
    found = figures(records, summary["duration_s"], whole, config.load.slo or {})
    in_window = found.pop("steady")
    exact = {name: value for name, value in found.items() if not name.endswith(("_itl_ms", "_icl_ms"))}
    _compare(file, summary, exact)
    _compare(file, summary["steady"], in_window, "steady.", NEAR)
    _compare(file, summary["routing"], authors(records, config.roles), "routing.")
    answered = any(row.expected is not None for row in rows)
    graded = quality("", records, [row.grade for row in rows])
    del graded["metric"]
    if answered and summary["quality"] is not None:
        _compare(file, summary["quality"], graded, "quality.")
    else:
        _compare(file, summary, {"quality": graded if answered else None})
    load = summary["load"]
    judged = judge(
        mode=config.load.mode, completed=summary["completed"], failed=summary["failed"],
        duration_s=summary["duration_s"],
        concurrency=load["concurrency"], steady_concurrency=whole.concurrency * (1 + NEAR),
        client_busy=load["client_busy"], others_busy=load.get("others_busy", 0.0), stopped=None)
    if not judged["valid"]:
        raise InputError(f"{file}: validity.valid=True; it gives false ({'; '.join(judged['reasons'])})")
    return records


def _compare(
    file: Path, told: Mapping[str, Any], found: Mapping[str, Any], prefix: str = "", near: float = ROUNDING
) -> None:
    for name, value in found.items():
        if not _close(told.get(name), value, near):
            raise InputError(f"{file.with_name('summary.json')}: {prefix}{name}={told.get(name)!r}; {file.name} gives "
                             f"{value!r}")


def _close(told: Any, found: Any, near: float) -> bool:
    match told, found:
        case dict(), dict():
            return told.keys() == found.keys() and all(_close(told[name], found[name], near) for name in found)
        case list(), list():
            return len(told) == len(found) and all(map(_close, told, found, [near] * len(found)))
        case int() | float(), int() | float():
            return math.isclose(told, found, rel_tol=near, abs_tol=1e-9)
    return bool(told == found)
