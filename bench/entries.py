"""Committed results: one folder an entry, results/entries/<algo>/<models>/<hardware>/<date>-<commit>-<config>/.

An entry is a run's `summary.json` and `config.yaml`, and, where the run was one of a comparison, `comparison.json`:
what it was compared with in the same hours on the same machine, [{system, ratio, low, high, repeats}].
"""
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.validity import comparable_by
from tokenrouter.core import InputError

ROOT = Path(__file__).resolve().parents[1] / "results" / "entries"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Entry:
    folder: Path
    summary: Mapping[str, Any]
    comparison: list[dict[str, Any]] = field(default_factory=list)

    @property
    def evidence(self) -> str:
        return str(self.summary["provenance"]["evidence"])

    @property
    def embedded(self) -> bool:
        """Of problems that the package makes itself; never ranked with those of the hub."""
        return not str(self.summary["provenance"]["data_source"]).startswith("hub:")

    @property
    def rank_key(self) -> str:
        """Entries are ranked among those with the same key only."""
        shared = comparable_by(self.summary) | {"concurrency": self.summary["load"]["concurrency"]}
        return json.dumps(shared, sort_keys=True)

    def ratio(self, system: str) -> dict[str, Any] | None:
        """Of this entry's throughput to that system's."""
        return next((row for row in self.comparison if row["system"] == system), None)


def load_entries(root: Path = ROOT) -> list[Entry]:
    """All entries, those of the highest throughput first. InputError for a file that is none."""
    entries = []
    for file in sorted(root.glob("*/*/*/*/summary.json")):
        entries.append(read_entry(file.parent))
    return sorted(entries, key=lambda entry: (entry.rank_key, -entry.summary["output_throughput"]))


def read_entry(folder: Path) -> Entry:
    comparison = folder / "comparison.json"
    return Entry(folder, read_summary(folder), json.loads(comparison.read_text()) if comparison.is_file() else [])


def read_summary(folder: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: allowed is the folder of a run, with its summary.json ({error})") from None
    if summary.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{folder}: schema_version={summary.get('schema_version')}; allowed is {SCHEMA_VERSION}")
    return summary


def hardware_name(summary: Mapping[str, Any]) -> str:
    """As a folder's name: `2x-intel-r-xeon-r-processor`."""
    origin = summary["provenance"]
    device = origin["gpu"] or f"{summary['hardware']['cores']}x {origin['cpu']}"
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
