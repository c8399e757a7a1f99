"""The zoo's table: the algorithms of conf/experiment/zoo.yaml at their operating points, on the same problems.

    python bench/zoo.py [algos=r2r,me] [requests=1000] [out=FOLDER] [profiles=FOLDER] [override ...]

Accuracy with its interval, the large model's share of the tokens, handoffs and tokens/s. The points are those of
conf/experiment/zoo.yaml: thresholds read off the calibrations' curves, or fields of the algorithm. Every point is a run
of bench/run.py with experiment=zoo, in a folder of its own below `out` (default: results/runs/zoo); one that is there
is not made again, so an interrupted command goes on. Writes zoo.md, zoo.csv and zoo.png to `out` and, if `profiles` is
given, each algorithm's routing at its middle point to it: `profiles=results/profiles` replaces the committed ones, by
which bench/submit.py judges how a run routes. Exit codes as bench/run.py; 143 after SIGTERM.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others
    if {"-h", "--help"} & set(sys.argv[1:]):  # which need not wait for what is imported
        print(__doc__, end="")
        sys.exit()

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from bench import config
from bench.config import Level, validate
from bench.plan import cluster_spec
from bench.series import ROOT, Interrupted, Turn, command, run_all, split
from bench.table import accuracy, number, share
from bench.validity import differences
from tokenrouter.config import Positive, Strict
from tokenrouter.core import InputError
from zoo.calibrate import default_file
from zoo.replay.profile import profile_of_run, write_profile

MIDDLE = "mid"


class Options(Strict, kw_only=True):
    algos: list[str] | None = None  # of the yaml's; None: all
    requests: Positive | None = None  # a point; None: the yaml's
    out: str = "results/runs/zoo"
    profiles: str | None = None


class Point(NamedTuple):
    """An operating point. `fields`: of the algorithm, in place of those in conf/algo/."""

    name: str
    fields: Mapping[str, Any]

    def overrides(self) -> list[str]:
        return [f"algo.{name}={json.dumps(value, separators=(',', ':')) if isinstance(value, list) else value}"
                for name, value in self.fields.items()]


class Curve(NamedTuple):
    """A calibration: the threshold that was chosen, and what was measured at each one tried."""

    file: Path
    chosen: float | str
    points: list[dict[str, Any]]

    def threshold(self, level: Level) -> float | str:
        """The chosen one, or that number which comes closest to a measure's value."""
        if level == "calibrated":
            return self.chosen
        [(measure, value)] = level.items()
        numbers = [point for point in self.points if not isinstance(point["threshold"], str)]
        return min(numbers, key=lambda point: abs(point[measure] - value))["threshold"]


@dataclass
class Entry:
    """An algorithm of the table. `note`: where its points are from, if they are not stated."""

    name: str
    points: list[Point]
    note: str = ""
    summaries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def middle(self) -> int:
        return next((i for i, point in enumerate(self.points) if point.name == MIDDLE), 0)


def composed(*overrides: str) -> dict[str, Any]:
    """The resolved configuration of experiment=zoo; InputError for one that bench/run.py would refuse."""
    values = config.composed(["experiment=zoo", *overrides])
    cluster_spec(validate(values), values)
    return values


def curve_of(values: Mapping[str, Any]) -> Curve | str:
    """The calibration that is shipped for an algorithm and these models, or why there is none."""
    algo, models = values["algo"], values["models"]["roles"]
    file = default_file(algo)
    name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    if not file.is_file():
        return f"there is no calibration curve ({name}, which python -m zoo.calibrate algo={algo['name']} writes)"
    read = json.loads(file.read_text())
    if read["models"] != {role: Path(models[role]["path"]).name for role in algo["roles"]}:
        return f"the calibration curve in {name} is of other models: {', '.join(read['models'].values())}"
    return Curve(name, read["threshold"], read["curve"])


def entry_of(values: Mapping[str, Any]) -> Entry:
    """The points that the yaml states for an algorithm or, where it states none, those of its curve."""
    name = values["algo"]["name"]
    stated = values["zoo"]["algos"][name]
    if stated is not None:
        return Entry(name, [Point(point, fields) for point, fields in stated.items()])
    curve = curve_of(values)
    if isinstance(curve, str):
        only = [Point("uncalibrated", {})]
        return Entry(name, only, f"{name}: {curve}; its one point is the threshold in conf/algo/")
    points = [Point(point, {"threshold": curve.threshold(level)}) for point, level in values["zoo"]["curve"].items()]
    return Entry(name, points, f"{name}: thresholds read off {curve.file}")


def plan(chosen: Sequence[str] | None, overrides: Sequence[str]) -> list[Entry]:
    """The algorithms (None: all of the yaml) and their points. InputError for the first that could not run."""
    for word in overrides:
        if word.split("=")[0].split(".")[0] == "algo":
            raise InputError(f"{word}: allowed is algos=, and zoo.algos.NAME.POINT.FIELD= of conf/experiment/zoo.yaml")
    known = list(composed(*overrides)["zoo"]["algos"])
    names = known if chosen is None else list(chosen)
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise InputError(f"algos={names}: allowed is a list of different ones of {known}")
    entries = [entry_of(composed(f"algo={name}", *overrides)) for name in names]
    for entry in entries:
        for point in entry.points:
            composed(f"algo={entry.name}", *point.overrides(), *overrides)
    return entries


def store_profiles(entries: Sequence[Entry], out: Path, folder: Path) -> list[str]:
    """Each algorithm's routing at its middle point; returns a line on each that has none."""
    lines = []
    for entry in entries:
        if len(entry.summaries[entry.middle]["models"]) == 1:
            continue
        try:
            profile = profile_of_run(out / f"{entry.name}-{entry.points[entry.middle].name}")
        except InputError as error:
            lines.append(f"{entry.name}: no routing profile: {error}")
        else:
            write_profile(profile, folder / profile.algo / profile.models / f"{profile.workload}.json")
    return lines


def measured(entries: Sequence[Entry]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Algorithm, point, what it sets, and the run's summary; where nothing is set, the threshold it ran with."""
    for entry in entries:
        for point, summary in zip(entry.points, entry.summaries, strict=True):
            threshold = summary["threshold"]
            fields = point.fields or ({} if threshold is None else {"threshold": threshold})
            words = [f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
                     for name, value in fields.items()]
            yield entry.name, point.name, ", ".join(words), summary


def tabulate(entries: Sequence[Entry]) -> pd.DataFrame:
    """One row a point, in numbers: fractions in [0, 1], tokens/s."""
    rows = []
    for algorithm, point, setting, summary in measured(entries):
        quality = summary["quality"] or {"value": None, "ci95": None, "n": 0}
        low, high = quality["ci95"] or (None, None)
        rows.append({
            "algorithm": algorithm, "point": point, "setting": setting, "accuracy": quality["value"],
            "accuracy_low": low, "accuracy_high": high, "graded": quality["n"],
            **{name: summary["routing"][name] for name in ("llm_token_fraction", "handoffs_per_100_tokens")},
            "output_throughput": summary["output_throughput"], "valid": summary["validity"]["valid"]})
    return pd.DataFrame(rows)


def readable(entries: Sequence[Entry]) -> pd.DataFrame:
    """The same in words."""
    rows = []
    for algorithm, point, setting, summary in measured(entries):
        validity, routing = summary["validity"], summary["routing"]
        rows.append({
            "algorithm": algorithm, "point": point, "setting": setting, "accuracy": accuracy(summary["quality"]) or "-",
            "LLM tokens": share(routing["llm_token_fraction"]),
            "handoffs / 100 tokens": number(routing["handoffs_per_100_tokens"]),
            "tok/s": f"{summary['output_throughput']:,.0f}",
            "valid": "yes" if validity["valid"] else "no: " + "; ".join(validity["reasons"])})
    return pd.DataFrame(rows)


def origin(entries: Sequence[Entry]) -> list[str]:
    """What the runs have in common, and what they should have and do not."""
    summaries = [summary for *_, summary in measured(entries)]
    first, load, where = summaries[0], summaries[0]["load"], summaries[0]["provenance"]
    lines = [
        f"{where['data_source']}, {load['num_requests']} requests at concurrency {load['concurrency']}, system "
        f"{first['system']}, {where['evidence']}",
        f"{where['gpu'] or where['cpu']}, {first['hardware']['cores']} cores, torch {where['torch']}, commit "
        f"{where['git_sha']}{' with changes' if where['dirty'] else ''}, {where['date'][:10]}"]
    if differing := differences(summaries):
        lines.append(f"not to be compared: the runs differ in {', '.join(differing)}")
    return lines


def plot(frame: pd.DataFrame, file: Path) -> None:
    """Accuracy over the large model's share and over throughput; the points of an algorithm are joined."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    columns = {"llm_token_fraction": "share of the large model's tokens", "output_throughput": "tokens / s"}
    for axis, (column, label) in zip(figure.subplots(1, 2, sharey=True), columns.items(), strict=True):
        for place, (algorithm, points) in enumerate(frame.groupby("algorithm", sort=False)):
            at = points.sort_values(column)
            spread = at[["accuracy_low", "accuracy_high"]].sub(at["accuracy"], axis=0).abs().T.to_numpy()
            axis.errorbar(at[column], at["accuracy"], yerr=spread, marker="os^vDP*Xp"[place % 9], capsize=2,
                          linewidth=1, label=algorithm)
        axis.set_xlabel(label)
    figure.axes[0].set_ylabel("accuracy")
    figure.axes[0].legend(fontsize=7)
    figure.savefig(file, dpi=120)


def main(arguments: Sequence[str]) -> None:
    options, overrides = split(arguments, Options)
    if options.requests is not None:
        overrides.append(f"load.num_requests={options.requests}")
    entries, out = plan(options.algos, overrides), Path(options.out)
    own = [word for word in overrides if not word.startswith("zoo.")]
    turns = [Turn(name := f"{entry.name}-{point.name}", name, out / name, [
        "experiment=zoo", "~zoo", f"algo={entry.name}", *point.overrides(), *own])
        for entry in entries for point in entry.points]
    try:
        summaries = iter(list(run_all(turns, once=1)))
    except Interrupted as stopped:
        stopped.kept = f"finished runs stay in {out}; the same command goes on"
        raise
    for entry in entries:
        entry.summaries = [next(summaries) for _ in entry.points]
    notes = [*origin(entries), *(entry.note for entry in entries if entry.note),
             *(store_profiles(entries, out, Path(options.profiles)) if options.profiles else [])]
    frame, table = tabulate(entries), readable(entries)
    frame.to_csv(out / "zoo.csv", index=False)
    (out / "zoo.md").write_text(table.to_markdown(index=False) + "\n\n" + "".join(f"- {note}\n" for note in notes))
    plot(frame, out / "zoo.png")
    console = Console(width=200)
    for text in (table.to_string(index=False), *notes, f"files: {out}"):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(command(main))
