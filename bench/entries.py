"""Committed results: one folder an entry, results/entries/<algo>/<models>/<hardware>/<date>-<commit>-<config>/.

An entry is a run's `summary.json` and `config.yaml`, and, where the run was one of a comparison, `comparison.json`:
what it was compared with in the same hours on the same machine, [{system, ratio, low, high, repeats}], and
`repeats.json`: the tokens/s of each of its repeats, which older entries lack.
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml  # type: ignore[import-untyped]
from msgspec import Meta, Struct

from bench.metrics import LATENCIES, STATISTICS
from bench.validity import comparable_by
from tokenrouter.config import Natural, Positive, PositiveFloat, convert
from tokenrouter.core import InputError

ROOT = Path(__file__).resolve().parents[1] / "results" / "entries"
SCHEMA_VERSION = 1
NAME, NAME_WORDS = r"(?a:\w[\w.-]*)", "letters, digits and _, then also . and -"  # of what folders are named after
SOURCES = ("embedded", "file", "hub", "random")  # what a data_source begins with, up to : or @
Amount = Annotated[float, Meta(ge=0, le=1e12)]  # finite
Share = Annotated[float, Meta(ge=0, le=1)]


class _Model(Struct):
    id: str
    params: Natural


class _Hardware(Struct):
    device: str
    threads: Positive
    cores: Positive


class _Load(Struct):
    mode: str
    concurrency: Positive
    num_requests: Positive
    seed: Natural
    client_busy: Amount
    others_busy: Amount = 0.0  # older runs did not look


class _Steady(Struct):
    duration_s: Amount
    output_throughput: Amount


class _Routing(Struct):
    tokens_by_model: dict[str, Natural]
    llm_token_fraction: Share | None
    handoffs: Natural
    handoffs_per_100_tokens: Amount | None
    P: list[list[Share]] | None


class _Quality(Struct):
    value: Share | None
    n: Natural
    ci95: Annotated[list[Share], Meta(min_length=2, max_length=2)] | None
    pass_at_k: dict[str, Share] | None


class _Validity(Struct):
    valid: bool
    kind: Literal["full", "smoke"]
    reasons: list[str]


class _Provenance(Struct):
    command: str | None
    evidence: Literal["measured", "emulated", "paper"]
    data_source: str
    data_version: int
    config_hash: str
    models_hash: str
    git_sha: str | None
    dirty: bool | None
    cpu: str
    gpu: str | None
    date: str


class _Run(Struct, kw_only=True):
    algo: str
    threshold: float | str | None
    workload: str
    system: str
    engine: str
    models: dict[str, _Model]
    sampling: dict[str, Any]
    hardware: _Hardware
    load: _Load
    completed: Natural
    failed: Natural
    duration_s: PositiveFloat
    total_input_tokens: Natural
    total_output_tokens: Natural
    output_throughput: PositiveFloat
    request_throughput: PositiveFloat
    steady: _Steady
    routing: _Routing
    quality: _Quality | None
    validity: _Validity
    provenance: _Provenance


Summary = msgspec.defstruct(  # what of a summary.json is read again; there may be more
    "Summary", [(f"{stat}_{name}_ms", Amount if name in ("ttft", "e2el") else Amount | None)
                for name in LATENCIES for stat in STATISTICS], bases=(_Run,))


class Against(Struct):
    """A row of comparison.json."""

    system: str
    ratio: PositiveFloat
    low: PositiveFloat
    high: PositiveFloat
    repeats: Positive


class _Comparison(Struct):
    comparison: list[Against]
    repeats: list[PositiveFloat]


class _Algo(Struct):
    weights: list[float] | str | None = None  # ME's; a file of others


class _Batching(Struct):
    policy: str
    B: list[Positive]


class _Config(Struct):
    """What of a config.yaml is shown."""

    algo: _Algo
    batching: _Batching


@dataclass(frozen=True)
class Entry:
    folder: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    comparison: Sequence[Mapping[str, Any]] = ()
    repeats: Sequence[float] = ()

    @property
    def models(self) -> str:
        """The configuration's name, as in conf/models."""
        return self.folder.parent.parent.name

    @property
    def hardware(self) -> str:
        return self.folder.parent.name

    @property
    def evidence(self) -> str:
        return str(self.summary["provenance"]["evidence"])

    @property
    def source(self) -> str:
        """Where the problems are from, one of SOURCES; those of different ones are never ranked together."""
        return re.split("[:@]", self.summary["provenance"]["data_source"])[0]

    @property
    def rank_key(self) -> str:
        """Entries are ranked among those with the same key only."""
        load = self.summary["load"]
        sent = ["mode", "request_rate", "concurrency", *(["num_requests"] if load["mode"] == "batch" else [])]
        shared = comparable_by(self.summary) | {"engine": self.summary["engine"]} | {
            name: load.get(name) for name in sent}
        return json.dumps(shared, sort_keys=True)

    def ratio(self, system: str) -> Mapping[str, Any] | None:
        """Of this entry's throughput to that system's."""
        return next((row for row in self.comparison if row["system"] == system), None)


def load_entries(root: Path = ROOT) -> list[Entry]:
    """All entries, those of the highest throughput first. InputError for a file that is none."""
    entries = []
    for file in sorted(root.glob("*/*/*/*/summary.json")):
        entries.append(read_entry(file.parent))
    return sorted(entries, key=lambda entry: (entry.rank_key, -entry.summary["output_throughput"]))


def read_entry(folder: Path) -> Entry:
    found: dict[str, Any] = {"comparison": [], "repeats": []}
    for name in found:
        if (file := folder / f"{name}.json").is_file():
            found[name] = _read(file)
            _check(file, found, _Comparison)
    config = _read(file := folder / "config.yaml", yaml.safe_load)
    _check(file, config, _Config)
    return Entry(folder, read_summary(folder), config, **found)


def read_summary(folder: Path) -> dict[str, Any]:
    """Of a run that comes from a commit. InputError, naming the field, for what is no such summary."""
    file = folder / "summary.json"
    summary = _read(file)
    if not isinstance(summary, dict):
        raise InputError(f"{file}: allowed is the summary of a run, not {summary!r:.80}")
    if summary.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{file}: schema_version={summary.get('schema_version')!r}; allowed is {SCHEMA_VERSION}")
    _check(file, summary, Summary)
    origin = summary["provenance"]
    for name, value, pattern, allowed in (
        *((name, summary[name], NAME, NAME_WORDS) for name in ("algo", "workload", "system")),
        ("provenance.git_sha", origin["git_sha"], "[0-9a-f]{40}", "the 40 digits of the commit that it is a run of"),
        ("provenance.config_hash", origin["config_hash"], "[0-9a-f]{12}", "12 hexadecimal digits"),
        ("provenance.data_source", origin["data_source"], f"({'|'.join(SOURCES)})[:@].+",
         f"what begins with one of {', '.join(SOURCES)}, and then : or @"),
    ):
        if not re.fullmatch(pattern, str(value)):
            raise InputError(f"{file}: {name}={value!r}; allowed is {allowed}")
    try:
        datetime.fromisoformat(origin["date"])
    except ValueError:
        raise InputError(f"{file}: provenance.date={origin['date']!r}; allowed is a date and time as in ISO 8601"
                         ) from None
    together = [("quality.", summary["quality"] or {}, ("value", "ci95")),
                *(("", summary, [f"{stat}_{name}_ms" for stat in STATISTICS]) for name in LATENCIES)]
    for prefix, values, names in together:
        if len({values.get(name) is None for name in names}) > 1:
            told = ", ".join(f"{prefix}{name}={values[name]!r}" for name in names)
            raise InputError(f"{file}: {told}; allowed is null for all or for none of them")
    if not hardware_name(summary):
        raise InputError(f"{file}: provenance.gpu={origin['gpu']!r}; allowed is a name with letters or digits")
    return summary


def _read(file: Path, parse: Callable[[str], Any] = json.loads) -> Any:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{file}: allowed is the folder of a run, with its {file.name} ({error})") from None


def _check(file: Path, values: dict[str, Any], schema: type[Struct]) -> None:
    try:
        convert(values, schema)
        json.dumps(values, allow_nan=False)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except ValueError:
        raise InputError(f"{file}: holds NaN or Infinity; allowed are finite numbers") from None


def hardware_name(summary: Mapping[str, Any]) -> str:
    """As a folder's name: `2x-intel-r-xeon-r-processor`."""
    origin = summary["provenance"]
    device = origin["gpu"] or f"{summary['hardware']['cores']}x {origin['cpu']}"
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
