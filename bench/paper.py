"""The paper's Figure 10 and Table 6: paper, prediction and measurement side by side.

    python bench/paper.py figure=10 [N=[1,4,8,16]] [repeats=1] [minutes=1.1] [out=FOLDER] [override ...]
    python bench/paper.py table=6 [N=[1,4,8]] ...

Every point is a run of bench/run.py with experiment=figure10 or table6, on emulated models, about `minutes` long.
Measured is the steady window; interleaved repeats give its median, least and greatest. A run whose folder has a
summary.json is not made again, so an interrupted command goes on. Writes results.csv, results.md and results.png to
`out` (default: results/runs/paper/figure10 or table6). Exit codes as bench/run.py.

The paper's figures do not all follow from its model at the p = 0.35 it states. Every point therefore stands twice: as
stated, and under one account that fits its eager rows better (p = 0.276, and models that share GPUs run 1.5 times
slower together). That account is a guess; docs/throughput.md says more.
"""
from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
PAPER = ROOT / "results" / "paper"
MEAN_TOKENS = 256  # of a request of workload=random
POLICIES = {"TokenRouter": "optimal", "- delayed batching": "eager"}  # the other rows of Table 6 are step-synchronous


@dataclass(frozen=True)
class Account:
    """What a point's figures are taken to be: p, step times alone, slowdown while both models run."""

    name: str
    p: float
    contention: float


ACCOUNTS = (Account("as stated", 0.35, 1.0), Account("contention", 0.276, 1.5))


@dataclass
class Point:
    """One cell. `policy`: of launches; `B`: of policy fixed. `measured`: steady tokens/s of each repeat."""

    label: str
    N: int
    account: Account
    policy: str
    latencies: tuple[float, float]
    paper: float | None
    B: tuple[int, int] | None = None
    measured: list[float] = field(default_factory=list)
    valid: bool = True

    @property
    def name(self) -> str:
        return f"{self.account.name} {self.label} N={self.N}".translate(str.maketrans(" ,()", "____"))

    def fields(self) -> dict[str, Any]:
        p = self.account.p
        return {"N": self.N, "P": [[1 - p, p], [1.0, 0.0]], "C": [[1, 0], [1, 0]], "L_ms": list(self.latencies),
                "delta_ms": 0.1, "contention": self.account.contention if self.account.contention > 1 else None}

    def predicted(self) -> float:
        """Tokens/s by the throughput model."""
        from tokenrouter.throughput.ladder import step_sync  # only found once the path is set, below
        from tokenrouter.throughput.search import evaluate, search
        from tokenrouter.throughput.spec import Spec

        spec = Spec.parse(self.fields())
        if self.policy == "step_sync":
            return step_sync(spec)
        if self.policy == "optimal":
            return search(spec).best.throughput
        return evaluate(spec, self.B or spec.eager).throughput

    def overrides(self, predicted: float, minutes: float) -> list[str]:
        """For bench/run.py: as many requests as fill the time."""
        p = self.account.p
        requests = max(self.N, round(60 * minutes * predicted / MEAN_TOKENS))
        words = [
            f"load.concurrency={self.N}", f"load.num_requests={requests}",
            f"algo.P=[[{1 - p},{p}],[1,0]]", f"engine.options.contention={self.account.contention}",
            *(f"engine.options.models.{model}.latency_ms={ms}"
              for model, ms in zip(("small", "large"), self.latencies, strict=True))]
        if self.policy == "step_sync":
            return [*words, "system=step_sync"]
        return [*words, f"batching={self.policy}", *([f"batching.B={list(self.B)}".replace(" ", "")] if self.B else [])]


def figure10(counts: Sequence[int]) -> Iterator[Point]:
    paper = json.loads((PAPER / "figure10.json").read_text())
    for account in ACCOUNTS:
        for N in counts:
            for B1 in range(1, N + 1):
                known = paper["eager"].get(str(N)) if B1 == 1 else None
                yield Point(f"B1={B1}", N, account, "fixed", tuple(paper["L_ms"]), known, (1, B1))


def table6(counts: Sequence[int]) -> Iterator[Point]:
    """Step times of the rows without graphs are not in the paper: they are those that give its column N = 1, relative
    to the rows above, so only the columns N > 1 test anything."""
    rows = json.loads((PAPER / "table6.json").read_text())["rows"]
    for account in ACCOUNTS:
        small, large = 6.0, 27.9
        before = rows[0]["1"]
        for row in rows:
            # At N = 1 a token takes L_0 + p L_1.
            grown = (small + account.p * large) * (before / row["1"] - 1)
            before = row["1"]
            if row["method"] == "- LLM CUDA graph":
                large += grown / account.p
            else:
                small += grown
            for N in counts:
                yield Point(row["method"], N, account, POLICIES.get(row["method"], "step_sync"),
                            (round(small, 1), round(large, 1)), row.get(str(N)))


class Arguments:
    """`figure=10` or `table=6`, `N=`, `repeats=`, `minutes=`, `out=`; everything else is passed on."""

    def __init__(self, words: Sequence[str]) -> None:
        own = {"figure": "", "table": "", "N": "", "repeats": "1", "minutes": "1.1", "out": ""}
        self.overrides = []
        for word in words:
            name, _, value = word.partition("=")
            if name in own:
                own[name] = value
            else:
                self.overrides.append(word)
        if (own["figure"], own["table"]) not in (("10", ""), ("", "6")):
            raise ValueError(f"figure={own['figure']} table={own['table']}: allowed is figure=10, or table=6")
        self.experiment = "figure10" if own["figure"] else "table6"
        try:
            self.counts = json.loads(own["N"] or "[1,4,8]")
            self.repeats, self.minutes = int(own["repeats"]), float(own["minutes"])
            good = self.repeats > 0 and self.minutes > 0 and self.counts and all(n > 0 for n in self.counts)
        except (ValueError, TypeError):
            good = False
        if not good:
            raise ValueError(f"N={own['N']} repeats={own['repeats']} minutes={own['minutes']}: allowed is a list of "
                             "whole numbers, a whole number, a number, all > 0")
        self.out = Path(own["out"] or f"results/runs/paper/{self.experiment}")


def main(words: Sequence[str]) -> int:
    try:
        arguments = Arguments(words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    points = list((figure10 if arguments.experiment == "figure10" else table6)(arguments.counts))
    predicted = [point.predicted() for point in points]
    for repeat in range(arguments.repeats):
        for point, value in zip(points, predicted, strict=True):
            folder = arguments.out / f"{repeat}-{point.name}"
            if not (folder / "summary.json").is_file():
                code = subprocess.run([
                    sys.executable, str(ROOT / "bench" / "run.py"), f"experiment={arguments.experiment}",
                    *point.overrides(value, arguments.minutes), *arguments.overrides, f"hydra.run.dir={folder}",
                ]).returncode
                if code:
                    return code
            summary = json.loads((folder / "summary.json").read_text())
            point.measured.append(summary["steady"]["output_throughput"])
            point.valid &= summary["validity"]["valid"]
    frame = tabulate(points, predicted)
    frame.to_csv(arguments.out / "results.csv", index=False)
    (arguments.out / "results.md").write_text(frame.to_markdown(index=False) + "\n")
    plot(frame, arguments.experiment, arguments.out / "results.png")
    Console(width=180).print(frame.to_string(index=False), highlight=False)
    print(f"files: {arguments.out}")
    return 0


def tabulate(points: Sequence[Point], predicted: Sequence[float]) -> pd.DataFrame:
    """One row a point; ratios of the medians."""
    rows = []
    for point, value in zip(points, predicted, strict=True):
        median = statistics.median(point.measured)
        rows.append({
            "account": point.account.name, "row": point.label, "N": point.N,
            "L ms": "{:g} / {:g}".format(*point.latencies), "paper": point.paper,
            "predicted": round(value, 2), "measured": round(median, 2),
            "least": round(min(point.measured), 2), "greatest": round(max(point.measured), 2),
            "measured/predicted": round(median / value, 4),
            "measured/paper": round(median / point.paper, 3) if point.paper else None,
            "valid": point.valid})
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, title: str, file: Path) -> None:
    """One panel an account and N: predicted, measured and paper over the rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(frame.groupby(["account", "N"], sort=False))
    columns = frame["N"].nunique()
    figure, axes = pyplot.subplots(
        -(-len(panels) // columns), columns, figsize=(4 * columns, 3.4 * -(-len(panels) // columns)), squeeze=False)
    for axis, ((account, N), part) in zip(axes.flat, panels, strict=True):
        at = range(len(part))
        axis.plot(at, part["predicted"], "--", color="grey", label="predicted")
        axis.plot(at, part["measured"], "o-", label="measured (emulated)")
        axis.plot(at, part["paper"], "x", color="black", label="paper")
        axis.set_xticks(at, part["row"], rotation=60, ha="right", fontsize=7)
        axis.set_title(f"N = {N}, {account}", fontsize=9)
        axis.set_ylabel("tokens / s")
    axes[0][0].legend(fontsize=7)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # not bench/, whose modules would hide others of the same names
    sys.exit(main(sys.argv[1:]))
