"""Tables in words: for the terminal, as a page of their own, and between the markers of docs/reproduction.md."""
from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.files import write_text
from bench.reproduce.description import Description, load, names
from bench.reproduce.tabulate import COLUMNS, STEADY, claims
from bench.series import ROOT
from tokenrouter.core import InputError

DOCUMENT = ROOT / "docs" / "reproduction.md"
NOTHING = "not measured"
_BLOCK = "<!-- {0} -->\n{1}<!-- end of {0} -->\n"


def readable(description: Description, frame: pd.DataFrame) -> pd.DataFrame:
    """Of each row what is read first. What is predicted is the throughput in the steady window."""
    words = frame[[*description.axes, "measure", "paper", "predicted", "measured", "steady"]].copy()
    for column in ("paper", "predicted", "measured", "steady"):
        words[column] = frame[column].map(number)
    words["from .. to"] = [f"{number(low)} .. {number(high)}" if pd.notna(low) else ""
                           for low, high in zip(frame["least"], frame["greatest"], strict=True)]
    words["gain"] = [_gain(row) for row in frame.to_dict("records")]
    measured, steady = frame["measured"].astype(float), frame["steady"].astype(float)
    words["measured/paper"] = (measured / frame["paper"].astype(float)).map(number)
    own = frame["measure"].map(description.measures) == STEADY
    words["steady/predicted"] = (measured.where(own, steady) / frame["predicted"].astype(float)).map(number)
    words["valid"] = frame["valid"]
    return words.fillna("")


def page(description: Description, frame: pd.DataFrame) -> str:
    """<name>.md: all rows."""
    parts = [f"# {description.title}\n", _caption(description, frame), _claims(description, frame),
             _markdown(readable(description, frame).to_dict("records"))]
    return "\n".join(part for part in parts if part)


def section(description: Description, frame: pd.DataFrame | None) -> str:
    """What docs/reproduction.md shows of a table. None: nothing was measured."""
    frame = pd.DataFrame(columns=[*description.axes, *COLUMNS]) if frame is None else frame
    parts = [_caption(description, frame), _claims(description, frame)]
    if frame[["measured", "predicted"]].notna().any(axis=None):
        parts += [_compact(description, frame), _footnotes(frame)]
    return "\n" + "\n".join(part for part in parts if part) + "\n"


def summary(tables: Sequence[tuple[Description, pd.DataFrame | None]]) -> str:
    """All claims in one table."""
    rows = []
    for description, frame in tables:
        empty = pd.DataFrame(columns=[*description.axes, *COLUMNS])
        rows += [{"where": description.title.partition(":")[0], **_words(claim)}
                 for claim in claims(description, empty if frame is None else frame)]
    return "\n" + _markdown(rows) + "\n"


def render(text: str, folder: Path) -> str:
    """`text` with all its blocks made anew from the CSV files in `folder`. InputError where a block is missing."""
    tables = [(description, read(description, folder)) for description in map(load, names())]
    blocks = {"claims": summary(tables)} | {
        description.name: section(description, frame) for description, frame in tables}
    for name, block in blocks.items():
        pattern = re.escape(_BLOCK.format(name, "\0")).replace("\0", "(?:.*\n)*?")
        text, found = re.subn(pattern, lambda _, name=name, block=block: _BLOCK.format(name, block), text)
        if found != 1:
            raise InputError(f"{DOCUMENT.name}: has {found} blocks {name!r}; allowed is one, between <!-- {name} --> "
                             f"and <!-- end of {name} -->")
    return text


def write(folder: Path) -> None:
    write_text(DOCUMENT, render(DOCUMENT.read_text(), folder))


def read(description: Description, folder: Path) -> pd.DataFrame | None:
    """A table that was kept; labels as text. Columns that it lacks, as it was made before there were any, are empty."""
    file = folder / f"{description.name}.csv"
    if not file.is_file():
        return None
    frame = pd.read_csv(file, dtype={name: str for name in [*description.axes, "measure", "valid", "commit", "date"]})
    frame = frame.reindex(columns=[*description.axes, *COLUMNS])
    for column in ("paper", "predicted", "measured", "steady", "least", "greatest", "gain", "gain_low", "gain_high"):
        frame[column] = frame[column].astype(float)
    return frame


def number(found: Any) -> str:
    if found is None or pd.isna(found):
        return ""
    return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.4g}" if abs(found) >= 1 else f"{found:.3g}"


def _caption(description: Description, frame: pd.DataFrame) -> str:
    lines = [f"{description.title}{f' ({description.unit})' if description.unit else ''}. `python bench/paper.py "
             f"{command_words(description.name)}`. Source: {description.source}."]
    real = frame[frame["evidence"] == "measured"]["data"].dropna().astype(str)
    if description.analogue and not (len(real) and all(not data.startswith("embedded:") for data in real)):
        lines.append(f"Analogue: {description.analogue}")
    if description.left_out:
        lines.append(f"Left out: {description.left_out}")
    if description.notes:
        lines.append(description.notes)
    if frame["gain"].notna().any():
        best = ", ".join(dict.fromkeys(block.gain_of for block in description.blocks if block.gain_of))
        lines.append(f"Gain: the factor by which {best} is better, paired: the median of the repeats [95 % bootstrap "
                     "interval over repeats and requests].")
    lines.append(_origin(frame))
    return "\n\n".join(lines) + "\n"


def _origin(frame: pd.DataFrame) -> str:
    """Where the figures come from."""
    made = frame.dropna(subset=["measured"])
    if made.empty:
        return "Not measured."
    said = {column: ", ".join(dict.fromkeys(made[column].dropna().astype(str)))
            for column in ("evidence", "machine", "models", "date", "commit")}
    return (f"Evidence: {said['evidence']}. Machine: {said['machine']}. Models: {said['models']}. {said['date']}, "
            f"commit {said['commit']}.")


def command_words(name: str) -> str:
    """`figure=1b` for figure1b."""
    kind = "figure" if name.startswith("figure") else "table"
    return f"{kind}={name.removeprefix(kind)}"


def _claims(description: Description, frame: pd.DataFrame) -> str:
    rows = [_words(claim) for claim in claims(description, frame)]
    return _markdown(rows) if rows else ""


def _words(claim: dict[str, Any]) -> dict[str, str]:
    measured = _range(claim["measured"])
    if measured:
        beside = [f"steady {_range(claim['steady'])}"] if claim["steady"] and claim["predicted"] else []
        beside += ["emulated"] if claim["emulated"] else []
        if claim["areas"]:
            beside.append(" over ".join(f"{number(area)} [{number(low)}, {number(high)}]"
                                        for area, low, high in claim["areas"]))
        measured += ("" if claim["valid"] else "*") + (f" ({', '.join(beside)})" if beside else "")
    return {"claim": claim["claim"], "paper": _range(claim["paper"]), "predicted": _range(claim["predicted"]),
            "measured": measured or NOTHING}


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    return str(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True)) + "\n"


def _range(values: Sequence[float]) -> str:
    found = dict.fromkeys(number(value) for value in values)
    return " to ".join(found)


def _compact(description: Description, frame: pd.DataFrame) -> str:
    """Measured figures, with the paper's and the predicted ones in brackets, and before these the steady window's; one
    axis goes from left to right."""
    axes, across = description.axes, description.columns
    down = [*(axis for axis in axes if axis != across), "measure"]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in frame.to_dict("records"):
        text = _cell(row)
        if text:
            place = tuple("" if pd.isna(row[name]) else str(row[name]) for name in down)
            rows.setdefault(place, {})[str(row[across])] = text
    labels = list(dict.fromkeys(str(label) for label in frame[across].dropna()))
    table = [dict(zip(down, place, strict=True)) | {
        (f"{across}={label}" if label.isdecimal() else label): found.get(label, "") for label in labels}
        for place, found in rows.items()]
    return _markdown(table)


def _cell(row: dict[str, Any]) -> str:
    known = ("paper", "steady", "predicted") if pd.notna(row["predicted"]) else ("paper",)
    beside = [f"{name} {number(row[name])}" for name in known if pd.notna(row[name])]
    beside += [f"gain {_gain(row)}"] if pd.notna(row["gain"]) else []
    if pd.isna(row["measured"]):
        return f"({', '.join(beside)})" if beside else ""
    mark = "" if row["valid"] == "yes" else "*"
    return f"{number(row['measured'])}{mark}" + (f" ({', '.join(beside)})" if beside else "")


def _gain(row: dict[str, Any]) -> str:
    return f"{row['gain']:.2f} [{row['gain_low']:.2f}, {row['gain_high']:.2f}]" if pd.notna(row["gain"]) else ""


def _footnotes(frame: pd.DataFrame) -> str:
    """What speaks against the marked figures, each reason once."""
    made = frame.dropna(subset=["measured"])
    if made.empty:
        return ""
    reasons: dict[str, int] = {}
    for valid in made["valid"]:
        if valid != "yes":
            for reason in str(valid).removeprefix("no: ").split("; "):
                kind = re.sub(r"\d[\d.,]*", "..", reason)
                reasons[kind] = reasons.get(kind, 0) + 1
    if not reasons:
        return "All of them are valid by the benchmark's rules (at least 60 s, 10 requests a client, 3 repeats).\n"
    return "\\* not valid: " + "; ".join(f"{reason} ({count} rows)" for reason, count in reasons.items()) + ".\n"
