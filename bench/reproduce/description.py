"""What a table or figure of the paper shows: results/paper/<name>.json, as cells to run, the paper's values and claims.

`axes` of a block name what its cells differ in: each label has the overrides of bench/run.py that it stands for, or
{"cpu": [...], "gpu": [...]} where these differ; a label without an entry for the hardware has no cells there. The cells
of a block are all combinations but those that `without` names, each with its reason, and those beyond `at_most`.
`like` takes everything that is not given from another description, whose cells are then shared; `axes` beside it
replaces single axes.
"""
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import msgspec

from bench.series import ROOT
from tokenrouter.config import Strict, convert
from tokenrouter.core import InputError

PAPER = ROOT / "results" / "paper"
Hardware = Literal["cpu", "gpu"]
Labels = dict[str, str]


class Absent(Strict):
    """Combinations that are not run, by some of their labels, and why."""

    where: Labels
    because: str


class Block(Strict, kw_only=True):
    """`compare`: the axis whose cells take turns on the same requests; none: all cells take turns, on their own, and
    with those of other blocks with the same `turns`. `gain_of`: the label on the axis whose gain over each other one is
    shown. `at_most`: axis -> axis whose number its own must not exceed."""

    axes: dict[str, dict[str, list[str] | dict[Hardware, list[str]]]]
    compare: str | None = None
    gain_of: str | None = None
    turns: str | None = None
    without: list[Absent] = msgspec.field(default_factory=list)
    at_most: dict[str, str] = msgspec.field(default_factory=dict)


class Claim(Strict, kw_only=True):
    """A sentence of the paper with a figure in it, and how to read it off the cells.

    ratio: `measure` of the cells with the labels `of` over that of the strongest of those with one of the labels `to`,
        wherever the other labels (and those of `where`) are the same. best: whether the best label of `axis` is the
        predicted one. area: tokens/s times quality that the points with labels `of` dominate, over those of `to`.
    paper: least and greatest, or one figure.
    """

    claim: str
    kind: Literal["ratio", "best", "area"] = "ratio"
    paper: list[float] = msgspec.field(default_factory=list)
    measure: str = ""
    of: Labels = msgspec.field(default_factory=dict)
    to: list[Labels] = msgspec.field(default_factory=list)
    where: Labels = msgspec.field(default_factory=dict)
    axis: str = ""


class Plot(Strict, kw_only=True):
    """`x`: an axis; a measure, to which `y` is joined for each of the `series`; or `measure`: all of them, without `y`.
    `panels`: axes, a panel a value."""

    x: str
    y: str | None = None
    series: str | None = None
    panels: list[str] = msgspec.field(default_factory=list)


class Description(Strict, kw_only=True):
    """`measures`: label -> field of summary.json, a dot for each level; /1000 behind it, or 1000/ before it, converts.
    `analogue`: what stands for the paper's setting on a CPU. `left_out`: what has no cells, and why. `columns`: the
    axis that compact tables have from left to right."""

    name: str
    title: str
    source: str
    unit: str = ""
    analogue: str = ""
    left_out: str = ""
    notes: str = ""
    experiment: str
    columns: str
    measures: dict[str, str]
    blocks: list[Block]
    plot: Plot
    paper: list[dict[str, Any]] = msgspec.field(default_factory=list)
    claims: list[Claim] = msgspec.field(default_factory=list)

    @property
    def axes(self) -> list[str]:
        """Of all blocks, in the order in which they come."""
        return list(dict.fromkeys(axis for block in self.blocks for axis in block.axes))

    @property
    def main(self) -> str:
        """The first measure."""
        return next(iter(self.measures))


@dataclass(frozen=True)
class Cell:
    """`overrides` of bench/run.py; `group`: those with the same one take turns. `compare`: as the block's. `gains`:
    whether its gain over the others of its group is shown. `because`: why it is not run, if it is not."""

    labels: tuple[tuple[str, str], ...]
    overrides: tuple[str, ...]
    group: tuple[Any, ...]
    compare: str | None
    gains: bool = False
    because: str = ""

    @property
    def name(self) -> str:
        return ", ".join(f"{axis}={label}" if label.isdecimal() else label for axis, label in self.labels)


def names() -> list[str]:
    """All descriptions, figures first, in the paper's order."""
    def place(name: str) -> tuple[str, int, str]:
        kind = name.rstrip("0123456789ab")
        number = name.removeprefix(kind)
        return kind, int(number.rstrip("ab")), number

    return sorted((file.stem for file in PAPER.glob("*.json")), key=place)


def load(name: str) -> Description:
    """InputError for a file that is not understood, or labels that are not on an axis."""
    fields = _read(name)
    fields.setdefault("experiment", name)
    try:
        description = convert({"name": name, **fields}, Description)
    except InputError as error:
        raise InputError(f"results/paper/{name}.json: {error}") from None
    _check(description)
    return description


def cells(description: Description, on: Hardware) -> list[Cell]:
    return [cell for number, block in enumerate(description.blocks)
            for cell in _of_block(block, number, on)]


def keep(found: list[Cell], only: list[str], axis_of: Mapping[str, str]) -> list[Cell]:
    """The cells with, on each axis that `only` has labels of, one of these."""
    wanted: dict[str, set[str]] = {}
    for label in only:
        if label in axis_of:
            wanted.setdefault(axis_of[label], set()).add(label)
    return [cell for cell in found
            if all(dict(cell.labels).get(axis) in labels for axis, labels in wanted.items())]


def axis_of(description: Description) -> dict[str, str]:
    """Label -> its axis, but for numbers."""
    return {label: axis for block in description.blocks for axis, labels in block.axes.items() for label in labels
            if not label.isdecimal()}


def matches(labels: Mapping[str, Any], some: Mapping[str, Any]) -> bool:
    return all(labels.get(axis) == label for axis, label in some.items())


def _of_block(block: Block, number: int, on: Hardware) -> Iterator[Cell]:
    for combination in product(*(labels.items() for labels in block.axes.values())):
        labels = dict(zip(block.axes, (label for label, _ in combination), strict=True))
        words: list[str] = []
        for _, given in combination:
            if isinstance(given, dict) and on not in given:
                break
            words += given[on] if isinstance(given, dict) else given
        else:
            if any(int(labels[axis]) > int(labels[other]) for axis, other in block.at_most.items()):
                continue
            because = next((absent.because for absent in block.without if matches(labels, absent.where)), "")
            others = [item for item in labels.items() if item[0] != block.compare] if block.compare else []
            gains = block.compare is not None and labels[block.compare] == block.gain_of
            group = (block.turns or number, *others)
            yield Cell(tuple(labels.items()), tuple(words), group, block.compare, gains, because)


def _read(name: str) -> dict[str, Any]:
    file = PAPER / f"{name}.json"
    if not file.is_file():
        raise InputError(f"{name}: allowed is one of {', '.join(names())}")
    fields: dict[str, Any] = json.loads(file.read_text())
    if "like" in fields:
        base, axes = _read(fields.pop("like")), fields.pop("axes", {})
        base.setdefault("experiment", json.loads(file.read_text())["like"])
        blocks = [block | {"axes": block["axes"] | {axis: labels for axis, labels in axes.items()
                                                    if axis in block["axes"]}} for block in base["blocks"]]
        fields = base | {"blocks": blocks} | fields
    return fields


def _check(description: Description) -> None:
    """Every label that is spoken of stands on its axis, so that nothing is silently not found."""
    labels = {axis: {label for block in description.blocks for label in block.axes.get(axis, {})}
              for axis in description.axes}
    spoken = [labels_of for claim in description.claims for labels_of in (claim.of, *claim.to, claim.where)]
    spoken += [absent.where for block in description.blocks for absent in block.without]
    for some in spoken:
        for axis, label in some.items():
            if label not in labels.get(axis, set()):
                raise InputError(f"results/paper/{description.name}.json: {axis}={label!r} is no label of its axes")
    for block in description.blocks:
        if block.gain_of and block.gain_of not in block.axes.get(block.compare or "", {}):
            raise InputError(f"results/paper/{description.name}.json: gain_of={block.gain_of!r}: allowed is a label of "
                             f"what is compared, {block.compare!r}")
    for record in description.paper:
        for key in record:
            if key not in description.axes and key not in description.measures:
                raise InputError(f"results/paper/{description.name}.json: paper: {key!r} is neither axis nor measure")
