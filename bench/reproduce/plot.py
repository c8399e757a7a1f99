"""A picture of a table: what was measured, predicted and published, a panel for each value of some axes."""
from __future__ import annotations

import textwrap
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.charts import COLOURS
from bench.reproduce.description import Description

WIDTH, HEIGHT, COLUMNS = 4.2, 3.5, 4
BESIDE = ("predicted", "least", "greatest")  # what a curve's points are drawn with
LETTERS, TITLE_LETTERS = 15, 12  # of a legend and of the title, to an inch


def draw(description: Description, frame: pd.DataFrame, file: Path) -> None:
    plot = description.plot
    by_axis = plot.x in (*description.axes, "measure")
    of_y = frame if plot.y is None else frame[frame["measure"] == plot.y]
    rows = of_y if by_axis else _joined(description, frame)
    panels: list[tuple[Any, pd.DataFrame]] = [("", rows)]
    if plot.panels:
        panels = list(rows.groupby(plot.panels, sort=False, dropna=False))
    across = min(COLUMNS, len(panels)) or 1
    down = -(-len(panels) // across) or 1
    figure = Figure(figsize=(WIDTH * across, HEIGHT * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    for axis, (title, part) in zip(axes.flat, panels, strict=False):
        (_by_axis if by_axis else _curve)(axis, description, part)
        axis.set_title(", ".join(str(word) for word in title) if isinstance(title, tuple) else str(title), fontsize=9)
        axis.set_ylabel(plot.y or description.unit, fontsize=8)
    for axis in axes.flat[len(panels):]:
        axis.set_axis_off()
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        room = int(LETTERS * WIDTH * across / (max(map(len, labels)) + 6))
        figure.legend(handles, labels, fontsize=7, ncols=max(1, min(room, len(labels))), loc="outside lower center")
    figure.suptitle(textwrap.fill(description.title, int(TITLE_LETTERS * WIDTH * across)), fontsize=10)
    figure.savefig(file, dpi=100, metadata={"Software": None})


def _series(description: Description, part: pd.DataFrame) -> list[tuple[Hashable, pd.DataFrame]]:
    series = description.plot.series
    return [("", part)] if series is None else list(part.groupby(series, sort=False, dropna=False))


def _by_axis(axis: Axes, description: Description, part: pd.DataFrame) -> None:
    """Labels of an axis of the table from left to right; joined where they are numbers."""
    labels = list(dict.fromkeys(part[description.plot.x].dropna()))
    joined = all(str(label).isdecimal() for label in labels)
    place = {label: position for position, label in enumerate(labels)}
    several = _series(description, part)
    for number, (name, rows) in enumerate(several):
        rows = rows.dropna(subset=[description.plot.x])
        shift = 0.0 if joined else 0.12 * (number - (len(several) - 1) / 2)
        at = [place[label] + shift for label in rows[description.plot.x]]
        colour, prefix = COLOURS[number % len(COLOURS)], f"{name}, " if name else ""
        middle = rows["measured"].astype(float)
        spread = [(middle - rows["least"].astype(float)).tolist(), (rows["greatest"].astype(float) - middle).tolist()]
        axis.errorbar(at, middle.tolist(), yerr=spread, fmt="o-" if joined else "o", color=colour, markersize=4,
                      label=f"{prefix}measured")
        if rows["predicted"].notna().any():
            axis.plot(at, rows["predicted"].astype(float), "--" if joined else "_", color=colour, alpha=0.6,
                      label=f"{prefix}predicted")
            if rows["steady"].notna().any():
                axis.plot(at, rows["steady"].astype(float), "+", color=colour, label=f"{prefix}steady")
        if rows["paper"].notna().any():
            axis.plot(at, rows["paper"].astype(float), "x", color="black", label=f"{prefix}paper")
    axis.set_xticks(range(len(labels)), labels, rotation=0 if joined else 40, ha="center" if joined else "right",
                    fontsize=7)
    if joined:
        axis.set_xlabel(description.plot.x, fontsize=8)
    axis.set_ylim(bottom=0)


def _joined(description: Description, frame: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, its measures side by side."""
    plot = description.plot
    wide = frame.dropna(subset=["measured"]).pivot_table(
        index=description.axes, columns="measure", values="measured", sort=False, dropna=False).reset_index()
    if not {plot.x, plot.y} <= set(wide):
        return pd.DataFrame(columns=[*description.axes, plot.x, plot.y])
    wide = wide.dropna(subset=[plot.x, plot.y])
    for measure in (plot.x, plot.y):
        beside = frame[frame["measure"] == measure][[*description.axes, *BESIDE]]
        wide = wide.merge(beside.rename(columns={name: f"{measure} {name}" for name in BESIDE}), on=description.axes)
    return wide


def _spread(rows: pd.DataFrame, measure: str) -> list[list[float]]:
    """How far below and above."""
    return [(rows[measure] - rows[f"{measure} least"]).tolist(), (rows[f"{measure} greatest"] - rows[measure]).tolist()]


def _curve(axis: Axes, description: Description, part: pd.DataFrame) -> None:
    plot = description.plot
    for number, (name, rows) in enumerate(_series(description, part)):
        rows = rows.sort_values(plot.x)
        axis.errorbar(rows[plot.x], rows[plot.y], xerr=_spread(rows, plot.x), yerr=_spread(rows, plot.y), fmt="o-",
                      color=COLOURS[number % len(COLOURS)], markersize=4, elinewidth=0.7, label=str(name))
        foreseen = rows[rows[[f"{plot.x} predicted", f"{plot.y} predicted"]].notna().any(axis=1)]
        if len(foreseen):
            at = [foreseen[f"{measure} predicted"].astype(float).fillna(foreseen[measure])
                  for measure in (plot.x, str(plot.y))]
            axis.plot(*at, "o", color=COLOURS[number % len(COLOURS)], fillstyle="none", markersize=5,
                      label=f"{name}, predicted")
    axis.set_xlabel(plot.x, fontsize=8)
