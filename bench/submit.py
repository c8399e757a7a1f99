"""Adds results to the leaderboard: python bench/submit.py RUN_OR_COMPARISON_FOLDER [...]

A run must be valid (see `validity` in its summary.json), made from a clean commit of this repository, and route as the
committed profile of its algorithm, models and workload says, and answer as well as results/quality has it, if these are
of the same threshold and data. The figures of its summary must be those that its requests.jsonl and config.yaml give
again (bench/recount.py). Of a comparison (bench/compare.py systems=[...]) every system is added, with its ratios to the
others and the throughput of its repeats; the run that is stored is the repeat with the median throughput, of an even
number the slower of the middle two. Exit code 2 says why a folder was refused; then nothing of it is added. An entry
that is there already stays as it is. LEADERBOARD.md and .html, and the README's table, are written anew.
"""
from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others

from bench.checkout import in_history
from bench.entries import NAME, NAME_WORDS, ROOT, hardware_name, load_entries, read_summary
from bench.leaderboard import write
from bench.progress import waiting
from bench.recount import Config, read_config, recount
from bench.validity import MIN_REPEATS, differences, out_of_turn, unequal_lengths
from tokenrouter.core import InputError
from zoo.cli import progress_bar

PROFILES = ROOT.parent / "profiles"
QUALITY = ROOT.parent / "quality"
SYSTEMS = ROOT.parents[1] / "conf" / "system"
ROUTED_TOLERANCE = 0.15  # of the profile's share, and a point at least: seeds and lengths move it


@dataclass(frozen=True)
class Run:
    folder: Path
    summary: dict[str, Any]
    config: Config


@dataclass(frozen=True)
class New:
    """An entry to be: its folder, and what the files in it hold."""

    folder: Path
    files: Mapping[str, bytes]


def submit(folder: Path, root: Path = ROOT, profiles: Path = PROFILES) -> list[Path]:
    """Check and add a run, or all systems of a comparison; returns the entries' folders. InputError if refused, before
    anything is written."""
    labelled: dict[str, dict[int, Path]] = defaultdict(dict)
    for file in folder.glob("*/summary.json"):
        if found := re.fullmatch(rf"(\d+)-({NAME})", file.parent.name):
            labelled[found.group(2)][int(found.group(1))] = file.parent
    if not labelled:
        run = check(folder, profiles)
        with waiting(Console(stderr=True), f"the recount of {folder}"):
            _recount(run)
        return _store([_entry(run, root)], root)
    numbers = [sorted(folders) for folders in labelled.values()]
    if len(numbers[0]) < MIN_REPEATS or any(other != numbers[0] for other in numbers):
        told = ", ".join(f"{system} {sorted(folders)}" for system, folders in sorted(labelled.items()))
        raise InputError(f"{folder}: repeats {told}; allowed are {MIN_REPEATS} or more, of each system the same")
    runs = {system: [check(labelled[system][number], profiles) for number in numbers[0]] for system in sorted(labelled)}
    _check_comparison(folder, runs)
    speeds = {system: [run.summary["output_throughput"] for run in repeats] for system, repeats in runs.items()}
    made = []
    for system, repeats in runs.items():
        order = sorted(range(len(repeats)), key=lambda i: speeds[system][i])
        middle = repeats[order[(len(order) - 1) // 2]]
        made.append(_entry(middle, root, comparison=ratios(speeds, system), repeats=speeds[system]))
    return _store(made, root)


def ratios(speeds: Mapping[str, Sequence[float]], system: str) -> list[dict[str, Any]]:
    """Of a system's throughput to each other's: the median of the repeats' ratios, the least and the greatest."""
    rows = []
    for other, theirs in speeds.items():
        if other != system:
            paired = [own / their for own, their in zip(speeds[system], theirs, strict=True)]
            rows.append({"system": other, "ratio": statistics.median(paired), "low": min(paired), "high": max(paired),
                         "repeats": len(paired)})
    return rows


def check(folder: Path, profiles: Path = PROFILES) -> Run:
    """A run whose summary and configuration may be an entry's; InputError, with the reason, for any other."""
    summary = read_summary(folder)
    validity, origin = summary["validity"], summary["provenance"]
    if not validity["valid"] or validity["kind"] != "full" or validity["reasons"]:
        raise InputError(f"{folder}: not valid ({'; '.join(validity['reasons'])}), {validity['kind']}; allowed is a "
                         "valid full run")
    if origin["dirty"] is not False:
        raise InputError(f"{folder}: git_sha={origin['git_sha']}, dirty={origin['dirty']}; allowed is a run from a "
                         "commit without changes, so that others can repeat it")
    known = sorted(file.stem for file in SYSTEMS.glob("*.yaml"))
    if summary["system"] not in known:
        raise InputError(f"{folder}: system={summary['system']!r}; allowed is one of {', '.join(known)}")
    config = read_config(folder, summary)
    if not re.fullmatch(NAME, config.models.name):
        raise InputError(f"{folder}/config.yaml: models.name={config.models.name!r}; allowed is {NAME_WORDS}")
    _check_routing(folder, summary, config, profiles)
    _check_quality(folder, summary, config)
    return Run(folder, summary, config)


def _check_routing(folder: Path, summary: Mapping[str, Any], config: Config, profiles: Path) -> None:
    """The share of steps that leave the entry model, against the profile's, at the same threshold."""
    roles, P = config.roles, summary["routing"]["P"]
    if P is None:
        if len(roles) > 1 and config.reports and all(summary["routing"]["tokens_by_model"].values()):
            raise InputError(f"{folder}: routing.P=None; allowed is what {summary['system']} reports where each model "
                             "made steps")
        return
    if len(P) != len(roles) or any(len(row) != len(roles) or abs(sum(row) - 1) > 1e-6 for row in P):
        raise InputError(f"{folder}: routing.P={P}; allowed are {len(roles)} rows of as many shares that sum to 1")
    if len(roles) == 1:
        return
    file = profiles / summary["algo"] / config.models.name / f"{summary['workload']}.json"
    profile = json.loads(file.read_text()) if file.is_file() else None
    if profile is None or profile["threshold"] != summary["threshold"] or len(profile["P"]) != len(roles):
        print(f"note: {folder}: there is no committed profile of threshold={summary['threshold']} to compare its "
              "routing with", file=sys.stderr)
        return
    ours, known = 1 - P[0][0], 1 - profile["P"][0][0]
    allowed = max(0.01, ROUTED_TOLERANCE * known)
    if abs(ours - known) > allowed:
        raise InputError(f"{folder}: routes {ours:.3f} of the entry model's steps; allowed is {known:.3f} +- "
                         f"{allowed:.3f}, as the committed profile has it")


def _check_quality(folder: Path, summary: Mapping[str, Any], config: Config) -> None:
    """The interval of the share of right answers must meet that of bench/quality.py, at the same threshold."""
    sampling = summary["sampling"]
    if not summary["quality"] or summary["quality"]["value"] is None:
        return
    file = QUALITY / f"{config.models.name}.json"
    measured = json.loads(file.read_text()) if file.is_file() else {"data": None, "algorithms": {}}
    alone = {"small": "slm_only", "large": "llm_only"}.get(config.system.only or "")
    record = measured["algorithms"].get(alone or config.system.only or summary["algo"])
    # Those of bench/quality.py are greedy, and end by themselves.
    natural = not sampling["temperature"] and not sampling["ignore_eos"] and config.workload.max_tokens is None
    if (record is None or not natural or measured["data"] != summary["provenance"]["data_source"]
            or (alone is None and record["threshold"] != summary["threshold"])):
        print(f"note: {folder}: results/quality has no answers of threshold={summary['threshold']} on these data, "
              "drawn alike, to compare its quality with", file=sys.stderr)
        return
    (low, high), (least, most) = summary["quality"]["ci95"], record["accuracy_ci95"]
    if high < least or low > most:
        raise InputError(f"{folder}: quality {summary['quality']['value']:.3f} [{low:.3f}, {high:.3f}]; allowed is an "
                         f"interval that meets [{least:.3f}, {most:.3f}], as bench/quality.py measured it")


def _check_comparison(folder: Path, runs: Mapping[str, Sequence[Run]]) -> None:
    """Each run must be of the system that its folder names, like the others in all else, and a run of its own."""
    everything = [run for repeats in runs.values() for run in repeats]
    for system, repeats in runs.items():
        for run in repeats:
            if run.summary["system"] != system:
                raise InputError(f"{run.folder}: system={run.summary['system']!r}; allowed is {system!r}, as its "
                                 "folder is called: a comparison of systems alone")
    summaries = [run.summary for run in everything]
    differing = [name for name in ("algo", "threshold") if any(s[name] != summaries[0][name] for s in summaries)]
    if differing := differing + differences(summaries) + unequal_lengths(summaries):
        raise InputError(f"{folder}: the runs cannot be compared: they differ in {', '.join(differing)}")
    seen: dict[Any, Path] = {}
    with progress_bar() as bar:
        for run in bar.track(everything, description=f"recounting {folder}"):
            date = run.summary["provenance"]["date"]
            for value, told in ((date, f"provenance.date={date}"), (_recount(run), "e2el_ms of all requests")):
                if (other := seen.setdefault(value, run.folder)) != run.folder:
                    raise InputError(f"{run.folder}: {told}, as in {other}; allowed are repeats, not copies")
    if reason := out_of_turn([[run.summary for run in repeats] for repeats in runs.values()]):
        raise InputError(f"{folder}: when its runs were made: {reason}; allowed are systems that take turns")


def _recount(run: Run) -> tuple[float, ...]:
    """Ends of the requests, from which the summary has its figures. InputError if it has others, or of an unknown
    commit."""
    sha = run.summary["provenance"]["git_sha"]
    if in_history(sha) is False:
        raise InputError(f"{run.folder}: provenance.git_sha={sha}; allowed is a commit that this repository has")
    return tuple(record.end for record in recount(run.folder, run.summary, run.config))


def _entry(run: Run, root: Path, **of_comparison: Sequence[Any]) -> New:
    """`of_comparison`: lists, each for the file of its name."""
    summary, origin = run.summary, run.summary["provenance"]
    day = datetime.fromisoformat(origin["date"]).date()
    name = f"{day}-{origin['git_sha'][:7]}-{origin['config_hash'][:7]}"
    files = {name: (run.folder / name).read_bytes() for name in ("summary.json", "config.yaml")}
    for file, rows in of_comparison.items():
        files[f"{file}.json"] = (json.dumps(rows, indent=2) + "\n").encode()
    return New(root / summary["algo"] / run.config.models.name / hardware_name(summary) / name, files)


def _store(made: Sequence[New], root: Path) -> list[Path]:
    """Write entries: all, or none if one is there already and is another."""
    missing = []
    for new in made:
        if not new.folder.exists():
            missing.append(new)
        elif {file.name: file.read_bytes() for file in new.folder.iterdir()} != new.files:
            raise InputError(f"{new.folder}: is there already and is another; allowed is the same again, or to remove "
                             "it before")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=root) as parts:
        for new in missing:
            part = Path(parts, new.folder.name)
            part.mkdir()
            for name, content in new.files.items():
                (part / name).write_bytes(content)
            new.folder.parent.mkdir(parents=True, exist_ok=True)
        for new in missing:
            Path(parts, new.folder.name).rename(new.folder)
    return [new.folder for new in made]


def main(words: Sequence[str]) -> int:
    if not words or {"-h", "--help"} & set(words):
        print(__doc__, file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    refused = False
    try:
        load_entries()  # without which no table could be written
        for word in words:
            try:
                for folder in submit(Path(word)):
                    print(f"added {folder}")
            except InputError as error:
                print(f"error: {error}", file=sys.stderr)
                refused = True
        for file in write():
            print(f"wrote {file}")
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        refused = True
    return 2 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
