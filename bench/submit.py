"""Adds results to the leaderboard: python bench/submit.py RUN_OR_COMPARISON_FOLDER [...]

A run must be valid (BENCH rules: see `validity` in its summary.json), made from a clean commit, and route as the
committed profile of its algorithm, models and workload says. Of a comparison (bench/compare.py) every system is added,
with its ratios to the others; what is stored of a system is the repeat with the median throughput. Exit code 2 says
why a folder was refused; then nothing of it is added. LEADERBOARD.md and .html are written anew.
"""
from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others

from bench.entries import ROOT, hardware_name, read_summary
from tokenrouter.core import InputError

PROFILES = ROOT.parent / "profiles"
ROUTED_TOLERANCE = 0.15  # of the profile's share, and a point at least: seeds and lengths move it
MIN_REPEATS = 3


def submit(folder: Path, root: Path = ROOT, profiles: Path = PROFILES) -> list[Path]:
    """Check and add a run, or all systems of a comparison; returns the entries' folders. InputError if refused."""
    runs: dict[str, list[Path]] = defaultdict(list)
    for child in sorted(folder.glob("*/summary.json")):
        if found := re.fullmatch(r"(\d+)-([\w.-]+)", child.parent.name):
            runs[found.group(2)].append(child.parent)
    if not runs:
        check(folder, profiles)
        return [_store(folder, [], root)]
    repeats = {len(folders) for folders in runs.values()}
    if len(repeats) > 1 or min(repeats) < MIN_REPEATS:
        raise InputError(
            f"{folder}: {sorted(repeats)} repeats; allowed are {MIN_REPEATS} or more, of each system as many")
    summaries = {system: [check(run, profiles) for run in folders] for system, folders in runs.items()}
    speeds = {system: [s["output_throughput"] for s in given] for system, given in summaries.items()}
    stored = []
    for system, folders in runs.items():
        middle = sorted(zip(speeds[system], folders, strict=True))[len(folders) // 2][1]
        stored.append(_store(middle, ratios(speeds, system), root))
    return stored


def ratios(speeds: Mapping[str, Sequence[float]], system: str) -> list[dict[str, Any]]:
    """Of a system's throughput to each other's: the median of the repeats' ratios, the least and the greatest."""
    rows = []
    for other, theirs in speeds.items():
        if other != system:
            paired = [own / their for own, their in zip(speeds[system], theirs, strict=True)]
            rows.append({"system": other, "ratio": statistics.median(paired), "low": min(paired), "high": max(paired),
                         "repeats": len(paired)})
    return rows


def check(folder: Path, profiles: Path = PROFILES) -> dict[str, Any]:
    """The summary of a run that may be an entry; InputError, with the reason, for any other."""
    summary = read_summary(folder)
    validity, origin = summary["validity"], summary["provenance"]
    if not validity["valid"]:
        raise InputError(f"{folder}: not valid ({'; '.join(validity['reasons'])}); allowed is a valid run")
    if origin["git_sha"] is None or origin["dirty"]:
        raise InputError(f"{folder}: git_sha={origin['git_sha']}, dirty={origin['dirty']}; allowed is a run from a "
                         "commit without changes, so that others can repeat it")
    config = _config(folder)
    profile = profiles / summary["algo"] / config["models"]["name"] / f"{summary['workload']}.json"
    if profile.is_file() and summary["system"] != "reference":
        _check_routing(folder, summary, json.loads(profile.read_text()))
    return summary


def _check_routing(folder: Path, summary: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
    """The share of steps that leave the entry model, against the profile's, at the same threshold."""
    P = summary["routing"]["P"]
    if P is None or len(P) != len(profile["P"]) or summary["threshold"] != profile["threshold"]:
        return
    ours, known = 1 - P[0][0], 1 - profile["P"][0][0]
    allowed = max(0.01, ROUTED_TOLERANCE * known)
    if abs(ours - known) > allowed:
        raise InputError(f"{folder}: routes {ours:.3f} of the entry model's steps; allowed is {known:.3f} +- "
                         f"{allowed:.3f}, as the committed profile has it")


def _store(folder: Path, comparison: list[dict[str, Any]], root: Path) -> Path:
    summary, config = read_summary(folder), _config(folder)
    origin = summary["provenance"]
    name = f"{origin['date'][:10]}-{origin['git_sha'][:7]}-{origin['config_hash'][:7]}"
    target = root / summary["algo"] / config["models"]["name"] / hardware_name(summary) / name
    target.mkdir(parents=True, exist_ok=True)
    for file in ("summary.json", "config.yaml"):
        shutil.copyfile(folder / file, target / file)
    if comparison:
        (target / "comparison.json").write_text(json.dumps(comparison, indent=2) + "\n")
    return target


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.yaml"
    if not file.is_file():
        raise InputError(f"{folder}: has no config.yaml; allowed is the folder of a run")
    config: Any = OmegaConf.to_container(OmegaConf.load(file))
    return dict(config)


def main(words: Sequence[str]) -> int:
    from bench.leaderboard import write

    if not words:
        print(__doc__, file=sys.stderr)
        return 2
    refused = False
    for word in words:
        try:
            for folder in submit(Path(word)):
                print(f"added {folder}")
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            refused = True
    write()
    return 2 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
