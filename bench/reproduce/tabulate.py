"""Runs become rows: paper, predicted and measured, for each cell and measure; and what comes of the paper's claims."""
from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench import validity
from bench.reproduce.description import Claim, Description, matches
from bench.reproduce.running import Outcome, groups

MIN_REPEATS = 3
THROUGHPUT = ("output_throughput", "steady.output_throughput")  # the fields that the throughput model predicts
QUALITY = "quality.value"
COLUMNS = ["measure", "paper", "predicted", "measured", "least", "greatest", "requests", "repeats", "evidence", "data",
           "models", "machine", "commit", "date", "valid"]


def tabulate(description: Description, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row a cell and measure, in the order of the cells; rows of the paper that no cell has follow."""
    rows, used = [], set()
    for group in groups(outcomes):
        differing = differences([outcome.summaries for outcome in group]) if group[0].cell.compare else []
        for outcome in group:
            known = [i for i, record in enumerate(description.paper) if matches(dict(outcome.cell.labels), {
                axis: value for axis, value in record.items() if axis in description.axes})]
            used |= set(known)
            paper = {measure: value for i in known for measure, value in description.paper[i].items()}
            for measure, field in description.measures.items():
                rows.append(dict(outcome.cell.labels) | {
                    "measure": measure, "paper": paper.get(measure)} | _measured(outcome, field, differing))
    for i, record in enumerate(description.paper):
        if i not in used:
            labels = {axis: value for axis, value in record.items() if axis in description.axes}
            rows += [labels | {"measure": measure, "paper": record[measure], "valid": "not measured"}
                     for measure in description.measures if record.get(measure) is not None]
    return pd.DataFrame(rows, columns=[*description.axes, *COLUMNS])


def completed(frame: pd.DataFrame, earlier: pd.DataFrame, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """`frame`, with the rows of `earlier` for cells of which nothing is measured now. Cells that are compared have
    taken turns: none has an earlier row beside a new one of the others. Rows of other machines are left out."""
    axes = list(frame.columns[:frame.columns.get_loc("measure")])
    unit = {frozenset(outcome.cell.labels): outcome.cell.group if outcome.cell.compare else outcome.cell.labels
            for outcome in outcomes}
    new = {unit[frozenset(outcome.cell.labels)] for outcome in outcomes if outcome.summaries}
    kept = {labels for labels, group in unit.items() if group not in new}
    machines = set(frame["machine"].dropna()) or set(earlier["machine"].dropna())
    known = {_place(row, [*axes, "measure"]): row for row in earlier.to_dict("records") if row["machine"] in machines}
    rows = [known.get(_place(row, [*axes, "measure"]), row) if _place(row, axes) in kept else row
            for row in frame.to_dict("records")]
    return pd.DataFrame(rows, columns=frame.columns)


def _place(row: Mapping[Any, Any], names: Sequence[str]) -> frozenset[tuple[str, Any]]:
    """Of a row: its labels, as a cell has them."""
    return frozenset((name, row[name]) for name in names if not pd.isna(row[name]))


def differences(repeats: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """What runs that are compared must share and do not; `repeats`: of each cell. How many requests they serve may
    differ, as those of the slower ones are the first of the others'."""
    all_runs = [run for runs in repeats for run in runs]
    emulated = {run["provenance"]["evidence"] for run in all_runs} == {"emulated"}  # whose models are what differs
    found = [name for name in validity.differences(all_runs)
             if name != "load.num_requests" and not (emulated and name == "models")]
    in_turns = validity.in_turns([runs for runs in repeats if runs])
    return found if in_turns else [*found, "when they were made: not in turns"]


def value(summary: Mapping[str, Any], field: str) -> float | None:
    """`field` as a description's measures have it; None where the run has no such figure."""
    inverse, scaled = field.startswith("1000/"), field.endswith("/1000")
    found: Any = summary
    for name in field.removeprefix("1000/").removesuffix("/1000").split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None or (inverse and not found):
        return None
    return 1000 / found if inverse else found / 1000 if scaled else float(found)


def _measured(outcome: Outcome, field: str, differing: Sequence[str]) -> dict[str, Any]:
    summaries = outcome.summaries
    values = [found for summary in summaries if (found := value(summary, field)) is not None]
    row: dict[str, Any] = {"predicted": _predicted(outcome) if field in THROUGHPUT else None,
                           "valid": judged(outcome, differing)}
    if not values:
        return row
    origin, models = summaries[0]["provenance"], summaries[0]["models"].values()
    # All repeats have the same answers: how sure a share of right ones is, its interval says.
    ends = [end for summary in summaries for end in summary["quality"]["ci95"]] if field == QUALITY else values
    return row | {
        "measured": statistics.median(values), "least": min(ends), "greatest": max(ends),
        "requests": summaries[0]["load"]["num_requests"], "repeats": len(values), "evidence": origin["evidence"],
        "data": origin["data_source"],
        "models": " + ".join(f"{model['id']} ({model['params'] / 1e6:.2f}M)" for model in models),
        "machine": origin["gpu"] or f"{origin['cpu']}, {summaries[0]['hardware']['cores']} cores",
        "commit": " ".join(sorted({str(s["provenance"]["git_sha"])[:7] for s in summaries})),
        "date": origin["date"][:10]}


def _predicted(outcome: Outcome) -> float | None:
    """Before the run or, where the configuration does not state routing and step times, from those of the runs."""
    if outcome.predicted is not None:
        return outcome.predicted
    found = [value(summary, "routing.predicted_throughput") for summary in outcome.summaries]
    known = [one for one in found if one is not None]
    return statistics.median(known) if known and len(known) == len(found) else None


def judged(outcome: Outcome, differing: Sequence[str]) -> str:
    """`yes`, or all that speaks against it."""
    if outcome.cell.because:
        return f"not run: {outcome.cell.because}"
    if not outcome.summaries:
        return outcome.failed or "not measured"
    reasons = [reason for summary in outcome.summaries for reason in summary["validity"]["reasons"]]
    if len(outcome.summaries) < MIN_REPEATS:
        reasons.append(f"{len(outcome.summaries)} repeats, comparisons need {MIN_REPEATS}")
    if differing:
        reasons.append(f"compared runs differ in {', '.join(differing)}")
    if outcome.failed:
        reasons.append(outcome.failed)
    return "; ".join(["no", *dict.fromkeys(reasons)]).replace("no; ", "no: ", 1) if reasons else "yes"


def claims(description: Description, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """For each claim: the paper's figures, those predicted and those measured, each [least, greatest] or empty.
    `valid`: whether all that is measured is; `emulated`: whether any of it is."""
    found = []
    for claim in description.claims:
        values = {column: _KINDS[claim.kind](description, claim, frame, column) for column in ("predicted", "measured")}
        made = frame[frame["measured"].notna() & (frame["measure"] == (claim.measure or description.main))]
        about = [row for row in made.to_dict("records") if matches(row, claim.where)
                 and any(matches(row, labels) for labels in (claim.of, *claim.to))]
        found.append({"claim": claim.claim, "paper": claim.paper, **values,
                      "valid": all(row["valid"] == "yes" for row in about),
                      "emulated": any(row["evidence"] == "emulated" for row in about)})
    return found


def _ratio(description: Description, claim: Claim, frame: pd.DataFrame, column: str) -> list[float]:
    """[least, greatest] over all places where both are known."""
    measure = claim.measure or description.main
    rows = [row for row in frame.to_dict("records") if row["measure"] == measure and matches(row, claim.where)]
    fixed = [axis for axis in description.axes if axis not in claim.of]
    inverse = not _more_is_better(description.measures[measure])
    values: dict[Any, float] = {}
    for row in rows:
        if matches(row, claim.of) and pd.notna(row[column]):
            values[tuple(row[axis] for axis in fixed)] = row[column]
    ratios = []
    for place, own in values.items():
        others = [row[column] for row in rows if any(matches(row, labels) for labels in claim.to)
                  and tuple(row[axis] for axis in fixed) == place and pd.notna(row[column])]
        if others:
            ratios.append(own / (min(others) if inverse else max(others)))
    return [min(ratios), max(ratios)] if ratios else []


def _more_is_better(field: str) -> bool:
    return field in THROUGHPUT or field.startswith("1000/") or field == QUALITY


def _best(description: Description, claim: Claim, frame: pd.DataFrame, column: str) -> list[float]:
    """Throughput measured at the predicted best label of `axis`, over the best measured: [least, greatest] over the
    other axes. Nothing is asked of the prediction itself."""
    if column == "predicted":
        return []
    rows = frame[frame["measure"] == description.main].dropna(subset=["measured", "predicted"])
    found = []
    for _, part in rows.groupby([axis for axis in description.axes if axis != claim.axis], dropna=False):
        if len(part) > 1:
            found.append(part.loc[part["predicted"].idxmax(), "measured"] / part["measured"].max())
    return [min(found), max(found)] if found else []


def _area(description: Description, claim: Claim, frame: pd.DataFrame, column: str) -> list[float]:
    """Dominated areas of two sets of points, tokens/s times quality, as a ratio."""
    if column == "predicted":
        return []
    wide = frame.pivot_table(index=description.axes, columns="measure", values="measured").reset_index()
    if "quality" not in wide or description.main not in wide:
        return []
    areas = []
    for labels in (claim.of, *claim.to):
        points = [(row[description.main], row["quality"]) for row in wide.to_dict("records") if matches(row, labels)]
        areas.append(dominated_area(points))
    return [areas[0] / max(areas[1:])] * 2 if areas[0] and max(areas[1:]) else []


def dominated_area(points: Sequence[tuple[float, float]]) -> float:
    """Of the union of the rectangles from the origin to each point."""
    area, height = 0.0, 0.0
    for x, y in sorted(points, reverse=True):
        if np.isfinite(x) and np.isfinite(y) and y > height:
            area, height = area + x * (y - height), y
    return area


_KINDS = {"ratio": _ratio, "best": _best, "area": _area}


