"""results/LEADERBOARD.md and .html, and the README's table, from the committed entries: python bench/leaderboard.py

Entries are ranked only among those that share models, data, sampling, hardware, engine, evidence and load; every such
group is a table of its own. The page adds sorting and filters, and plots throughput against quality and latency.
"""
from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from rich.console import Console

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others

from bench.charts import COLOURS, svg
from bench.entries import ROOT, Entry, load_entries
from bench.files import write_text
from bench.progress import waiting
from bench.table import accuracy, load_of, number, share
from tokenrouter.core import InputError

BASELINES = ("std", "std_plus", "official", "llm_only")
README_BEGIN, README_END = "<!-- entries -->", "<!-- /entries -->"
README_COLUMNS = ["system", "algo", "concurrency", "tok/s", "tpot p50 / p99 ms", "e2el ms", "LLM tokens", "quality",
                  *(f"over {name}" for name in BASELINES), "seconds", "date"]
# What the README says of its table is so of these: models, hardware, workload.
README_ENTRIES = ("tiny", "2x-intel-r-xeon-r-processor", "aime")
READING = (
    "Rows that share workload, load, models, data, sampling, hardware, engine and evidence stand in the order of "
    "tok/s. That does not make them comparable: a virtual machine can be 1.7 times as fast in some hours as in "
    "others. Only what ran in turns can be compared, by the ratios: of throughput, paired in "
    "one comparison, median [least, greatest] of the repeats. Where an entry has them, the repeats' least and "
    "greatest tok/s are given.")
# What a cell is sorted by: its first number; nothing, and so first, where it has none.
_KEY = """function (text, type) {
  if (type !== 'sort' && type !== 'type') { return text; }
  const number = /\\d[\\d.,]*(e[-+]?\\d+)?/.exec(text);
  return number ? parseFloat(number[0].replaceAll(',', '')) : '';
}"""
_AS_TEXT = ("system", "algo", "batching", "evidence", "valid", "date", "commit", "workload", "hardware", "models",
            "engine", "data", "command")
_KIND = {"measured": "Measured", "emulated": "Emulated: models are waited for, not run", "paper": "From the paper"}
_SOURCE = {"embedded": "problems of the package", "file": "data of a file", "hub": "data of the hub",
           "random": "random tokens"}


def columns(entry: Entry) -> dict[str, str]:
    """A row of the table, in words."""
    s, routing, validity = entry.summary, entry.summary["routing"], entry.summary["validity"]
    least_greatest = f" [{min(entry.repeats):,.0f}, {max(entry.repeats):,.0f}]" if entry.repeats else ""
    return {
        "system": s["system"],
        "algo": s["algo"],
        "threshold": _threshold(entry),
        "batching": _batching(**entry.config["batching"]),
        "tok/s": f"{s['output_throughput']:,.0f}{least_greatest}",
        "tpot p50 / p99 ms": f"{s['median_tpot_ms']:.2f} / {s['p99_tpot_ms']:.2f}" if s["median_tpot_ms"] else "-",
        "LLM tokens": share(routing["llm_token_fraction"]),
        "handoffs / 100 tokens": number(routing["handoffs_per_100_tokens"]),
        "quality": accuracy(s["quality"]) or "-",
        **{f"over {name}": _ratio(entry, name) for name in BASELINES},
        "evidence": entry.evidence,
        "valid": "yes" if validity["valid"] else "no: " + "; ".join(validity["reasons"]),
        "date": s["provenance"]["date"][:10],
        "commit": s["provenance"]["git_sha"][:7],
    }


def group_title(members: Sequence[Entry]) -> str:
    """What entries that are ranked share, and all models that any of them runs."""
    s, origin = members[0].summary, members[0].summary["provenance"]
    sizes = {m["id"]: m["params"] for entry in members for m in entry.summary["models"].values()}
    ordered = sorted((params, name) for name, params in sizes.items())
    models = ", ".join(f"{name} {params / 1e6:.2f}M" for params, name in ordered)
    on = origin["gpu"] or f"{origin['cpu']}, {s['hardware']['cores']} cores"
    return f"{s['workload']}, {load_of(s)}: {members[0].models} ({models}) on {on}, {s['engine']}"


def groups(entries: Sequence[Entry]) -> dict[tuple[str, str], list[list[Entry]]]:
    """Entries by evidence and by where the problems are from; in each, the groups that are ranked."""
    kinds: dict[tuple[str, str], list[list[Entry]]] = {}
    for _, ranked in groupby(entries, key=lambda entry: entry.rank_key):
        members = list(ranked)
        kinds.setdefault((members[0].evidence, members[0].source), []).append(members)
    return kinds


def markdown(entries: Sequence[Entry]) -> str:
    lines = ["# Leaderboard", "", "Generated by `python bench/leaderboard.py` from `results/entries`; "
             "`python bench/submit.py RUN` adds to it.", "", READING]
    for (evidence, source), ranked in groups(entries).items():
        lines += ["", f"## {_KIND[evidence]}, {_SOURCE[source]}"]
        for members in ranked:
            frame = pd.DataFrame([columns(entry) for entry in members])
            first = members[0].summary["provenance"]
            lines += ["", f"### {group_title(members)}", "", f"Data {first['data_source']}, version "
                      f"{first['data_version']}.", "", frame.to_markdown(index=False, disable_numparse=True), ""]
            lines += [f"- {entry.summary['system']} ({entry.summary['algo']}): `{command(entry)}`" for entry in members]
    return "\n".join(lines) + "\n"


def command(entry: Entry) -> str:
    """What gave the entry."""
    return str(entry.summary["provenance"]["command"])


def readme(text: str, entries: Sequence[Entry]) -> str:
    """The README's text with the table of the entries that it speaks of between its two marks."""
    before, mark, rest = text.partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    if not mark or not end:
        return text
    rows = []
    shown = filter(_in_readme, entries)
    for entry in sorted(shown, key=lambda e: (e.summary["load"]["concurrency"], -e.summary["output_throughput"])):
        s = entry.summary
        rows.append({
            "concurrency": s["load"]["concurrency"], **columns(entry),
            "e2el ms": f"{s['mean_e2el_ms']:,.0f}", "seconds": f"{s['duration_s']:.0f}"})
    table = pd.DataFrame(rows)[README_COLUMNS] if rows else pd.DataFrame(columns=README_COLUMNS)
    # Without padding, so that one row more changes one line.
    lines = ["| " + " | ".join(cells) + " |" for cells in (
        README_COLUMNS, ["---"] * len(README_COLUMNS), *(map(str, row) for row in table.itertuples(index=False)))]
    return f"{before}{mark}\n{chr(10).join(lines)}\n{end}{after}"


def html(entries: Sequence[Entry]) -> str:
    from itables import JavascriptFunction, options
    from itables.javascript import generate_init_offline_itables_html, to_html_datatable

    sections = []
    for place, ((evidence, source), ranked) in enumerate(groups(entries).items()):
        frame = pd.DataFrame([
            {**columns(e), "workload": e.summary["workload"], "load": load_of(e.summary), "hardware": e.hardware,
             "models": e.models, "engine": e.summary["engine"], "data": e.summary["provenance"]["data_source"],
             "command": command(e)}
            for members in ranked for e in members])
        by_number = [i for i, name in enumerate(frame) if name not in _AS_TEXT]
        table = to_html_datatable(
            frame, connected=False, table_id=f"entries-{place}", showIndex=False, paging=False,
            classes="compact stripe nowrap", order=[], columnControl=["order", ["searchList"]],
            columnDefs=[{"targets": by_number, "render": JavascriptFunction(_KEY)}],
            ordering={"indicators": False, "handlers": False})
        sections.append({"title": f"{_KIND[evidence]}, {_SOURCE[source]}", "table": table,
                         "charts": [(group_title(m), _charts(m)) for m in ranked if len(m) > 1]})
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True)
    return environment.get_template("leaderboard.html.jinja").render(
        library=generate_init_offline_itables_html(options.dt_bundle), reading=READING, sections=sections)


def _charts(members: Sequence[Entry]) -> list[tuple[str, str]]:
    """Throughput against quality, and against the speed that one client sees."""
    return [
        ("tok/s against accuracy", _scatter(members, lambda s: s["quality"] and s["quality"]["value"], "accuracy")),
        ("tok/s against tokens per second of one request", _scatter(
            members, lambda s: s["median_tpot_ms"] and 1e3 / s["median_tpot_ms"], "1 / tpot, tok/s")),
    ]


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points than which no other is better in one of the two and not worse in the other, by the first."""
    best: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best[::-1]


def _scatter(members: Sequence[Entry], at: Callable[[Mapping[str, Any]], float | None], label: str) -> str:
    """A colour a system, a marker an algorithm, and the frontier as steps."""
    systems, algos = (list(dict.fromkeys(entry.summary[name] for entry in members)) for name in ("system", "algo"))

    def draw(axes: Axes) -> None:
        drawn: dict[str, list[tuple[float, float]]] = {}
        for s in (entry.summary for entry in members):
            if (x := at(s)) is not None:
                name = f"{s['system']} · {s['algo']}"
                axes.plot(x, s["output_throughput"], "os^vDP*Xp"[algos.index(s["algo"]) % 9],
                          color=COLOURS[systems.index(s["system"]) % len(COLOURS)],
                          label=f"_{name}" if name in drawn else name)  # once in the legend
                drawn.setdefault(name, []).append((x, s["output_throughput"]))
        if drawn:
            axes.step(*zip(*frontier([point for points in drawn.values() for point in points]), strict=True),
                      where="pre", linewidth=1, zorder=0, color=mpl.rcParams["axes.edgecolor"], gid="frontier")
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=7)
        axes.margins(0.1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.set_ylabel("tok/s")

    return svg(draw, 6.0, 3.0)


def write(root: Path = ROOT) -> list[Path]:
    """The files that were written. InputError, naming it, for an entry that is none; then nothing is written."""
    with waiting(Console(stderr=True), "the tables"):
        entries = load_entries(root)
        texts = {root.parent / "LEADERBOARD.md": markdown(entries),
                 root.parent / "LEADERBOARD.html": html(entries)}
        if (front := root.parents[1] / "README.md").is_file():
            texts[front] = readme(front.read_text(), entries)
    for file, text in texts.items():
        write_text(file, text)
    return list(texts)


def main(words: Sequence[str]) -> int:
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    if words:
        print(f"error: {shlex.join(words)}: unknown; allowed are no words\n{__doc__}", file=sys.stderr)
        return 2
    try:
        for file in write():
            print(f"wrote {file}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _in_readme(entry: Entry) -> bool:
    s = entry.summary
    return ((entry.models, entry.hardware, s["workload"]) == README_ENTRIES and entry.evidence == "measured"
            and entry.source == "embedded" and s["load"]["mode"] == "closed" and not s["sampling"]["temperature"])


def _threshold(entry: Entry) -> str:
    """Of the algorithm; ME has weights in its place."""
    threshold, weights = entry.summary["threshold"], entry.config["algo"].get("weights")
    if isinstance(weights, list):
        return f"weights {weights}"
    return "-" if threshold is None else threshold if isinstance(threshold, str) else f"{threshold:.4g}"


def _batching(policy: str, B: Sequence[int], **others: Any) -> str:
    return f"{policy} {list(B)}" if policy == "fixed" else policy


def _ratio(entry: Entry, system: str) -> str:
    row = entry.ratio(system)
    return f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" if row else "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
