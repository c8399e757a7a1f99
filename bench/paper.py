"""The paper's tables and figures: paper, prediction and measurement side by side.

    python bench/paper.py table=6 | figure=1b | all [options] [override ...]
    python bench/paper.py write                              # docs/reproduction.md from results/paper/measured/

What a table shows and how it is measured is in results/paper/<name>.json, what its runs have in common in
conf/experiment/<name>.yaml; overrides are those of bench/run.py. On a CPU an analogue stands for what it cannot do,
which the output names; `models=... engine=sglang` runs the same on GPUs. Options:

    N=[1,4]        only these numbers of clients
    only=[a,b]     only cells with these labels: on an axis any of those given, of several axes all
    repeats=3      turns of each cell; fewer than 3 are no valid comparison
    minutes=1.2    how long the fastest of the compared cells measures; all serve the same requests, 10 a client or more
    longest=6      minutes after which a slower one ends, having served the first of these requests, one a client at
                   least: fewer than 10 are not valid
    requests=8     so many requests in each cell instead: to try it out
    on=gpu         GPU cells instead of the analogues; implied by engine=sglang and hardware.device=cuda
    out=FOLDER     for runs and tables (default: results/runs/paper)
    keep           a word of its own: tables whose cells are through also go to results/paper/measured/ and from there
                   to docs/reproduction.md; what was kept of other cells stays, but for those with which the measured
                   ones are compared; of those that would have taken turns with them, it is said
    dry            a word of its own: nothing is run; what is there already, and what is predicted

`list` prints the tables with the number of their cells. Runs that are there already are not repeated, so an interrupted
command goes on. For each table <name>.csv, .md and .png are written. Exit codes as bench/run.py; 143 after SIGTERM.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others
    if {"-h", "--help"} & set(sys.argv[1:]):  # which need not wait for what is imported
        print(__doc__, end="")
        sys.exit()

import pandas as pd
from rich.console import Console

from bench.files import write_text
from bench.progress import waiting
from bench.reproduce import document
from bench.reproduce.description import PAPER, Cell, Description, axis_of, cells, keep, load, names
from bench.reproduce.plot import draw
from bench.reproduce.running import Options, Series, hardware
from bench.reproduce.tabulate import completed, tabulate
from bench.series import Interrupted, RunFailed, command, split
from tokenrouter.core import InputError

WORDS = ("all", "write", "list", "keep", "dry")
MEASURED = PAPER / "measured"


def parse(words: Sequence[str]) -> tuple[Options, list[str], list[str], set[str]]:
    """Options, the names of the tables, overrides, and which of WORDS were given."""
    given = {word for word in words if word in WORDS}
    options, overrides = split([word for word in words if word not in WORDS], Options)
    asked = [f"{kind}{number}" for kind, number in (("figure", options.figure), ("table", options.table))
             if number is not None]
    if len(asked) + len(given & {"all", "write", "list"}) != 1:
        raise InputError(f"{' '.join(words) or 'no words'}: allowed is one of figure=, table=, all, list, write")
    known = names()
    if not set(asked) <= set(known):
        raise InputError(f"{asked[0]}: allowed is one of {', '.join(known)}")
    return options, asked or known, overrides, given


def chosen(description: Description, options: Options, overrides: Sequence[str]) -> list[Cell]:
    """The cells that the options leave."""
    found = keep(cells(description, hardware(options, overrides)), options.only, axis_of(description))
    if options.N and "N" in description.axes:
        found = [cell for cell in found if int(dict(cell.labels)["N"]) in options.N]
    return found


def main(words: Sequence[str]) -> None:
    options, asked, overrides, given = parse(words)
    if "write" in given:
        document.write(MEASURED)
        return
    tables = [load(name) for name in asked]
    labels = {label for table in tables for label in axis_of(table)}
    if unknown := [label for label in options.only if label not in labels]:
        raise InputError(f"only={unknown}: allowed are labels of these tables: {', '.join(sorted(labels))}")
    selected = {table.name: [] if "dry" in given else chosen(table, options, overrides) for table in tables}
    if "list" in given:
        for table in tables:
            runs = sum(not cell.because for cell in selected[table.name])
            print(f"{table.name:9} {runs:4} cells  {table.title}")
        return
    failed = [table.name for table in tables
              if not make(table, selected[table.name], options, overrides, "keep" in given)]
    if failed:
        print(f"error: cells failed in {', '.join(failed)}", file=sys.stderr)
        raise RunFailed(1)


def make(table: Description, found: list[Cell], options: Options, overrides: Sequence[str], kept: bool) -> bool:
    """Runs the cells `found` of a table and writes its files, with all that is there; whether no cell failed."""
    series, on = Series(table, options, overrides), hardware(options, overrides)
    err = Console(stderr=True)
    with waiting(err, f"the cells of {table.name}"):
        outcomes = series.prepare(cells(table, on))
    if not outcomes:
        print(f"{table.name}: nothing to run on {on.upper()}s: {table.left_out}", file=sys.stderr)
        return True
    try:
        series.execute([outcome for outcome in outcomes if outcome.cell in found])
    except Interrupted as stopped:
        stopped.kept = f"finished runs and a table of them stay in {options.out}; the same command goes on"
        raise
    finally:
        new = [outcome.cell for outcome in outcomes if outcome.summaries]
        with waiting(err, f"the rows of {table.name}"):
            series.collect(outcomes)
            frame = tabulate(table, outcomes)
            save(table, frame, Path(options.out))
    if kept:
        earlier = document.read(table, MEASURED)
        every = [outcome.cell for outcome in outcomes]
        save(table, frame if earlier is None else completed(table, frame, earlier, every, new), MEASURED)
        document.write(MEASURED)
    known = frame[frame[["paper", "predicted", "measured"]].notna().any(axis=1)]
    print(document.readable(table, known).to_string(index=False))
    print(f"files: {Path(options.out) / table.name}.csv, .md, .png", flush=True)
    return not any(outcome.failed for outcome in outcomes)


def save(table: Description, frame: pd.DataFrame, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / f"{table.name}.csv", index=False, float_format="%.6g")
    if folder != MEASURED:  # there docs/reproduction.md shows it
        write_text(folder / f"{table.name}.md", document.page(table, frame))
    draw(table, frame, folder / f"{table.name}.png")


if __name__ == "__main__":
    sys.exit(command(main))
