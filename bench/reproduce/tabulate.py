"""Runs become rows: paper, predicted and measured, for each cell and measure; and what comes of the paper's claims."""
from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from itertools import groupby
from typing import Any, get_args

import numpy as np
import pandas as pd

from bench import validity
from bench.paired import MEASURES, Paired
from bench.reproduce.description import Cell, Claim, Description, Hardware, Labels, cells, matches
from bench.reproduce.running import Outcome, groups

STEADY = "steady.output_throughput"  # what the throughput model predicts
THROUGHPUT = ("output_throughput", STEADY)  # the fields that stand beside it
QUALITY = "quality.value"
# `steady`: tokens/s in the steady window, where `measured` is that of the whole run. `gain`: the factor by which the
# cell whose gains are shown is better than this one, paired, and its bootstrap interval of 95 %.
COLUMNS = ["measure", "paper", "predicted", "measured", "steady", "least", "greatest", "gain", "gain_low", "gain_high",
           "requests", "repeats", "evidence", "data", "models", "machine", "commit", "date", "valid"]
TURNS = ("hardware", "git_sha")  # what runs that take turns share, even if they are of other requests
APART = "not in turns with what was measured since"


def tabulate(description: Description, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row a cell and measure, in the order of the cells; rows of the paper that no cell has follow."""
    rows, used = [], set()
    for group in groups(outcomes):
        own = [outcome for outcome in group if outcome.cell.compare or not outcome.collected] or group
        differing = differences(own)
        best = next((outcome for outcome in own if outcome.cell.gains and outcome.summaries), None)
        for outcome in group:
            besides = differing if outcome in own else [f"when they were made: {APART}"]
            known = [i for i, record in enumerate(description.paper) if matches(dict(outcome.cell.labels), {
                axis: value for axis, value in record.items() if axis in description.axes})]
            used |= set(known)
            paper = {measure: value for i in known for measure, value in description.paper[i].items()}
            for measure, field in description.measures.items():
                row = dict(outcome.cell.labels) | {"measure": measure, "paper": paper.get(measure)}
                row |= _measured(outcome, field, besides)
                rows.append(row | (_gain(best, outcome, field) if best and outcome in own else {}))
    for i, record in enumerate(description.paper):
        if i not in used:
            labels = {axis: value for axis, value in record.items() if axis in description.axes}
            rows += [labels | {"measure": measure, "paper": record[measure], "valid": "not measured"}
                     for measure in description.measures if record.get(measure) is not None]
    return pd.DataFrame(rows, columns=[*description.axes, *COLUMNS])


def completed(
    description: Description, frame: pd.DataFrame, earlier: pd.DataFrame, found: Iterable[Cell], new: Collection[Cell],
) -> pd.DataFrame:
    """`frame`, with the rows of `earlier` for cells of a table that are not among the `new`. Cells that are compared
    have taken turns: none has an earlier row beside a new one of the others; of others that take turns, an earlier row
    is not valid beside a new one. Rows of other machines than the new ones' are left out."""
    axes = description.axes
    groups_now, labels_now = {cell.group for cell in new}, {frozenset(cell.labels) for cell in new}
    kept = {frozenset(cell.labels): cell.group in groups_now for cell in found
            if cell not in new and not (cell.compare and cell.group in groups_now)}
    made = [row["machine"] for row in frame.to_dict("records") if _place(row, axes) in labels_now]
    machines = {machine for machine in made if not pd.isna(machine)} or set(earlier["machine"].dropna())
    known = {_place(row, [*axes, "measure"]): row for row in earlier.to_dict("records") if row["machine"] in machines}
    rows = []
    for row in frame.to_dict("records"):
        place, there = _place(row, axes), known.get(_place(row, [*axes, "measure"]))
        if place not in kept or there is None:
            rows.append(row)
        else:
            rows.append(there | {"valid": _also(there["valid"], APART)} if kept[place] else there)
    return pd.DataFrame(rows, columns=frame.columns)


def _also(valid: str, reason: str) -> str:
    """`valid` with one more reason against it."""
    if valid == "yes":
        return f"no: {reason}"
    return valid if reason in valid else f"{valid}; {reason}"


def _place(row: Mapping[Any, Any], names: Sequence[str]) -> frozenset[tuple[str, Any]]:
    """Of a row: its labels, as a cell has them."""
    return frozenset((name, row[name]) for name in names if not pd.isna(row[name]))


def differences(group: Sequence[Outcome]) -> list[str]:
    """What the runs of cells that take turns must share and do not. How many requests those that are compared serve
    may differ, as those of the slower ones are the first of the others'."""
    made = [outcome for outcome in group if outcome.summaries]
    all_runs = [run for outcome in made for run in outcome.summaries]
    found = validity.differences(all_runs)
    if group[0].cell.compare:
        emulated = {run["provenance"]["evidence"] for run in all_runs} == {"emulated"}  # whose models are what differs
        found = [name for name in found if name != "load.num_requests" and not (emulated and name == "models")]
        found += ["output tokens"] if _unequal_lengths(made) else []
    else:
        found = [name for name in found if name in TURNS]
    reason = validity.out_of_turn([outcome.summaries for outcome in made])
    return [*found, f"when they were made: {reason}"] if reason else found


def _unequal_lengths(made: Sequence[Outcome]) -> bool:
    """Whether systems that are to give the same answers, as they route alike between the same models, do not write as
    much for the requests that all of them answered. Repeats have the same answers, so the first tells."""
    def routing(outcome: Outcome) -> list[Any]:
        summary = outcome.summaries[0]
        return [summary["algo"], str(summary["threshold"]), *sorted(summary["models"])]

    for _, alike in groupby(sorted(made, key=routing), routing):
        tokens = [Paired(outcome.folders[:1], outcome.summaries[:1]).requests[0]["output_tokens"]
                  for outcome in alike]
        both = reduce(pd.Index.intersection, [of_one.index for of_one in tokens])
        if validity.unequal_lengths([{"total_output_tokens": int(of_one.loc[both].sum())} for of_one in tokens]):
            return True
    return False


def _gain(best: Outcome, other: Outcome, field: str) -> dict[str, float]:
    """By what factor `best` is better in `field`, over the repeats that both have; nothing where it is itself `other`
    or there is no such interval."""
    repeats = min(len(best.summaries), len(other.summaries))
    plain = field.removeprefix("1000/").removesuffix("/1000").removeprefix("steady.")
    measure = next((label for label, known in MEASURES.items() if known == plain), None)
    if best is other or not repeats or measure is None:
        return {}
    sides = [Paired(outcome.folders[:repeats], outcome.summaries[:repeats]) for outcome in (best, other)]
    own, base = sides if plain in THROUGHPUT else sides[::-1]
    figure = partial(value, field=field) if plain in THROUGHPUT else None  # other units give the same ratio
    if (found := own.ratio(base, measure, figure)) is None:
        return {}
    return {"gain": found[0], "gain_low": found[1].low, "gain_high": found[1].high}


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
    steady = [found for summary in summaries if (found := value(summary, STEADY)) is not None]
    return row | {
        "measured": statistics.median(values), "least": min(ends), "greatest": max(ends),
        "steady": statistics.median(steady) if steady and field in THROUGHPUT and field != STEADY else None,
        "requests": summaries[0]["load"]["num_requests"], "repeats": len(values), "evidence": origin["evidence"],
        "data": origin["data_source"],
        "models": " + ".join(f"{model['id']} ({model['params'] / 1e6:.2f}M)" for model in models),
        "machine": origin["gpu"] or f"{origin['cpu']}, {summaries[0]['hardware']['cores']} cores",
        "commit": ", ".join(sorted({_commit(summary["provenance"]) for summary in summaries})),
        "date": origin["date"][:10]}


def _commit(origin: Mapping[str, Any]) -> str:
    return f"{str(origin['git_sha'])[:7]}{' with changes' if origin['dirty'] else ''}"


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
    reasons += validity.shortcomings([outcome.summaries])
    if differing:
        reasons.append(f"compared runs differ in {', '.join(differing)}")
    if outcome.failed:
        reasons.append(outcome.failed)
    return "; ".join(["no", *dict.fromkeys(reasons)]).replace("no; ", "no: ", 1) if reasons else "yes"


def claims(description: Description, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """For each claim: the paper's figures, those predicted, those measured and, where these are of whole runs, those of
    the steady windows, which the predicted ones are of; each [least, greatest] or empty. `areas`: of a claim about
    areas both sides', and what they are where all points are as low, or as high, as their intervals say. `valid`:
    whether every cell that the claim speaks of is measured and valid, and those that it puts beside each other took
    turns; `emulated`: whether any of them is."""
    there, found = _cells(description, frame), []
    for claim in description.claims:
        values = {column: _KINDS[claim.kind](description, claim, frame, column)
                  for column in ("predicted", "measured", "steady")}
        compared = _compared(description, claim, there)
        rows = {_place(row, description.axes): row for row in frame.to_dict("records")
                if row["measure"] == (claim.measure or description.main) and pd.notna(row["measured"])}
        about = [rows.get(frozenset(cell.labels)) for sides in compared for side in sides for cell in side]
        areas = [_dominated(description, frame, labels) for labels in _sides(description, claim, frame)]
        found.append({"claim": claim.claim, "paper": claim.paper, **values, "areas": areas,
                      "valid": bool(about) and all(row is not None and row["valid"] == "yes" for row in about) and all(
                          len({frozenset(cell.group for cell in side) for side in sides}) == 1 for sides in compared),
                      "emulated": any(row is not None and row["evidence"] == "emulated" for row in about)})
    return found


def _cells(description: Description, frame: pd.DataFrame) -> list[Cell]:
    """What is run on the hardware that a table was measured on: on a CPU where its rows do not tell."""
    made = {_place(row, description.axes) for row in frame.dropna(subset=["measured"]).to_dict("records")}
    of_each = [[cell for cell in cells(description, on) if not cell.because] for on in get_args(Hardware)]
    return next((found for found in of_each if made <= {frozenset(cell.labels) for cell in found}), of_each[0])


def _compared(description: Description, claim: Claim, there: Sequence[Cell]) -> list[list[list[Cell]]]:
    """All comparisons that a claim is made of, each as the cells of its sides."""
    speaks = [cell for cell in there if matches(dict(cell.labels), claim.where)]
    sides = [[cell for cell in speaks if matches(dict(cell.labels), labels)] for labels in (claim.of, *claim.to)]
    if claim.kind == "area":
        return [sides]
    fixed = [axis for axis in description.axes if axis != claim.axis and axis not in claim.of]
    places: dict[tuple[str | None, ...], list[list[Cell]]] = {}
    for cell in sides[0]:
        places.setdefault(tuple(dict(cell.labels).get(axis) for axis in fixed), []).append([cell])
    for cell in (cell for side in sides[1:] for cell in side):
        if beside := places.get(tuple(dict(cell.labels).get(axis) for axis in fixed)):
            beside.append([cell])
    return [found for found in places.values() if len(found) > 1]


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
    if column != "measured":
        return []
    rows = frame[frame["measure"] == description.main].dropna(subset=["measured", "predicted"])
    found = []
    for _, part in rows.groupby([axis for axis in description.axes if axis != claim.axis], dropna=False):
        if len(part) > 1:
            found.append(part.loc[part["predicted"].idxmax(), "measured"] / part["measured"].max())
    return [min(found), max(found)] if found else []


def _area(description: Description, claim: Claim, frame: pd.DataFrame, column: str) -> list[float]:
    """Dominated areas of two sets of points, tokens/s times quality, as a ratio."""
    areas = [_dominated(description, frame, labels)[0] for labels in _sides(description, claim, frame)]
    return [areas[0] / areas[1]] * 2 if column == "measured" and all(areas) and areas else []


def _sides(description: Description, claim: Claim, frame: pd.DataFrame) -> list[Labels]:
    """Whose areas a claim compares, if any: of several that it puts its own beside, the greatest."""
    if claim.kind != "area":
        return []
    return [claim.of, max(claim.to, key=lambda labels: _dominated(description, frame, labels)[0])]


def _dominated(description: Description, frame: pd.DataFrame, labels: Labels) -> tuple[float, float, float]:
    """The area of the points with these labels: as measured, and where all are as low, or as high, as their intervals
    say. Zeros where nothing is known of them."""
    areas = []
    for column in ("measured", "least", "greatest"):
        wide = frame.pivot_table(index=description.axes, columns="measure", values=column).reset_index()
        known = {description.main, "quality"} <= set(wide)
        areas.append(dominated_area([(row[description.main], row["quality"]) for row in wide.to_dict("records")
                                     if matches(row, labels)]) if known else 0.0)
    return areas[0], areas[1], areas[2]


def dominated_area(points: Sequence[tuple[float, float]]) -> float:
    """Of the union of the rectangles from the origin to each point."""
    area, height = 0.0, 0.0
    for x, y in sorted(points, reverse=True):
        if np.isfinite(x) and np.isfinite(y) and y > height:
            area, height = area + x * (y - height), y
    return area


_KINDS = {"ratio": _ratio, "best": _best, "area": _area}


