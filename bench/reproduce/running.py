"""Cells become runs of bench/run.py: how many requests each serves, in which order, and what is already there.

The cells of a group take turns (A B A B ...). Those that are compared serve the same requests, as many as the fastest
needs for `minutes`; one that would then take longer than `longest` minutes serves the first of these only, if need be
fewer than a valid run has. How fast a cell is says the throughput model, where it can before anything is run, or else a
short trial, which is made once.
"""
from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.config import composed, validate
from bench.plan import roles_of
from bench.predict import nominal_tables, policy_of, predict, system
from bench.reproduce.description import Cell, Description, Hardware
from bench.series import RunFailed, duration, finished, run
from bench.validity import MIN_REQUESTS_A_CLIENT
from tokenrouter.config import Positive, PositiveFloat, Strict
from tokenrouter.throughput.search import search
from zoo.tasks import longer

TRIAL_TOKENS = 256  # of a trial's answers, where answers have drawn lengths
START_S = 12.0  # of a run, before and after it measures
FULL_MINUTES = 1.0  # from here on a cell is to be valid


class Options(Strict, kw_only=True):
    """Of bench/paper.py, which explains them."""

    figure: int | str | None = None
    table: int | str | None = None
    N: list[Positive] = msgspec.field(default_factory=list)
    only: list[str] = msgspec.field(default_factory=list)
    repeats: Positive = 3
    minutes: PositiveFloat = 1.2
    longest: PositiveFloat = 6.0
    requests: Positive | None = None
    on: Hardware | None = None
    out: str = "results/runs/paper"

    @property
    def size(self) -> str:
        """What cells of one length have in common: the folder of theirs."""
        return f"requests-{self.requests}" if self.requests else f"minutes-{self.minutes:g}-longest-{self.longest:g}"


@dataclass
class Outcome:
    """A cell and what became of it. `predicted`: tokens/s in the steady window, where the model says so beforehand.
    `folders`: of the runs whose `summaries` these are; `collected`: by an earlier command, not this one."""

    cell: Cell
    values: dict[str, Any]
    predicted: float | None
    requests: int = 0
    seconds: float | None = None  # that a run is expected to take
    summaries: list[dict[str, Any]] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    collected: bool = False
    failed: str = ""


def groups(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Those whose cells take turns, in the order in which the first of them come."""
    found: dict[Any, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.cell.group, []).append(outcome)
    return list(found.values())


def hardware(options: Options, words: Sequence[str]) -> Hardware:
    """What `on=` says, or else the overrides."""
    if options.on is not None:
        return options.on
    gpu = any(word == "engine=sglang" or word.startswith("hardware.device=cuda") for word in words)
    return "gpu" if gpu else "cpu"


class Rate(msgspec.Struct, frozen=True):
    """Tokens/s of a cell, and tokens of a request."""

    throughput: float
    tokens: float


class Series:
    """The runs of one table or figure."""

    def __init__(self, description: Description, options: Options, words: Sequence[str]) -> None:
        self.description, self.options, self.words = description, options, list(words)
        self.out = Path(options.out)

    def prepare(self, found: Iterable[Cell]) -> list[Outcome]:
        """Checks every cell before any is run. InputError for the first that could not be."""
        outcomes = []
        for cell in found:
            values = {} if cell.because else composed(self.command(cell))
            outcomes.append(Outcome(cell, values, predicted(values) if values else None))
        return outcomes

    def execute(self, outcomes: Sequence[Outcome]) -> None:
        """All runs that are not there yet. A cell whose run fails is left; RunFailed where going on makes no sense,
        InputError, with nothing run, for problems of a list that is yet to be made."""
        runnable = [outcome for outcome in outcomes if not outcome.cell.because]
        for values in (outcome.values for outcome in runnable):
            if not values["models"]["embedded"] and (listed := values["workload"].get("only")):
                longer.read(listed)
        total, number = len(runnable) * self.options.repeats, 0
        for group in groups(runnable):
            self._sizes(group)
            for repeat in range(self.options.repeats):
                for outcome in group:
                    number += 1
                    if not outcome.failed:
                        self._say(runnable, outcome, repeat, number, total)
                        self._once(outcome, repeat)

    def collect(self, outcomes: Iterable[Outcome]) -> None:
        """Finds what earlier commands have run of the cells that this one has not: of several numbers of requests, that
        with most repeats, and of several such that which was run last."""
        for outcome in outcomes:
            if outcome.summaries or outcome.cell.because:
                continue
            several = [self._finished(outcome, folder)
                       for folder in (self.out / self.options.size).glob(f"{self.name(outcome)}-*")]
            latest = max(filter(None, several), default=[], key=lambda runs: (
                len(runs), runs[-1][1]["provenance"]["date"]))
            outcome.collected = True
            outcome.folders = [folder for folder, _ in latest]
            outcome.summaries = [summary for _, summary in latest]

    def command(self, cell: Cell, *more: str) -> list[str]:
        return [f"experiment={self.description.experiment}", *cell.overrides, *self.words, *more]

    def name(self, outcome: Outcome) -> str:
        """Of a cell's folders: the same for the same command line but for the number of requests."""
        values = outcome.values
        digest = hashlib.blake2b("\n".join(self.command(outcome.cell)).encode(), digest_size=4).hexdigest()
        return (f"{values['algo']['name']}-{values['workload']['name']}-{values['system']['name']}-"
                f"N{values['load']['concurrency']}-{digest}")

    def _finished(self, outcome: Outcome, folder: Path) -> list[tuple[Path, dict[str, Any]]]:
        """The repeats in the folder of a number of requests, which its name ends with."""
        words = self.command(outcome.cell, f"load.num_requests={folder.name.rpartition('-')[2]}")
        repeats = sorted((file.parent for file in folder.glob("*/summary.json")), key=lambda repeat: int(repeat.name))
        return [(repeat, summary) for repeat in repeats if (summary := finished(repeat, words)) is not None]

    def _once(self, outcome: Outcome, repeat: int) -> None:
        # Which cells are selected, and whose trial fails, changes how many requests are served: those are other runs.
        folder = self.out / self.options.size / f"{self.name(outcome)}-{outcome.requests}" / str(repeat)
        began = time.monotonic()
        try:
            outcome.summaries.append(run(folder, self.command(
                outcome.cell, f"load.num_requests={outcome.requests}")))
            outcome.folders.append(folder)
        except RunFailed as error:
            if error.code != 1:
                raise
            outcome.failed = "the run failed"
        if (took := time.monotonic() - began) > START_S / 2:  # it was made just now
            outcome.seconds = took

    def _sizes(self, group: Sequence[Outcome]) -> None:
        """How many requests each cell of a group serves."""
        options = self.options
        if options.requests is not None:
            for outcome in group:
                outcome.requests = options.requests
            return
        rates = {id(outcome): rate for number, outcome in enumerate(group, start=1)
                 if (rate := self._rate(outcome, f"{number} of {len(group)}"))}
        wanted = {key: 60 * options.minutes * rate.throughput / rate.tokens for key, rate in rates.items()}
        most = max(wanted.values(), default=0.0)
        for outcome in group:
            if outcome.failed:
                continue
            rate, N = rates[id(outcome)], outcome.values["load"]["concurrency"]
            least = N * (MIN_REQUESTS_A_CLIENT if options.minutes >= FULL_MINUTES else 1)
            affordable = 60 * options.longest * rate.throughput / rate.tokens
            same = most if outcome.cell.compare else wanted[id(outcome)]
            outcome.requests = max(N, round(min(max(same, least), affordable)))
            outcome.seconds = START_S + outcome.requests * rate.tokens / rate.throughput

    def _rate(self, outcome: Outcome, which: str) -> Rate | None:
        """Of the cell that is `which` of its group. None if the trial fails, which the outcome then says. Answers of
        drawn lengths are cut short in a trial, so what it estimates is the speed at short contexts: long ones take
        longer than that says."""
        lengths = drawn_lengths(outcome.values)
        if outcome.predicted is not None and lengths is not None:
            return Rate(outcome.predicted, lengths)
        N = outcome.values["load"]["concurrency"]
        more = [f"load.num_requests={2 * N}"]
        if lengths is not None:
            more.append(f"workload.max_tokens={TRIAL_TOKENS}")
        folder = self.out / "trials" / self.name(outcome)
        print(f"{self.description.name} trial {which}: {outcome.cell.name}", flush=True)
        try:
            summary = run(folder, self.command(outcome.cell, *more))
        except RunFailed as error:
            if error.code != 1:
                raise
            outcome.failed = "the trial failed"
            return None
        tokens = summary["total_output_tokens"] / summary["completed"]
        return Rate(summary["steady"]["output_throughput"] or summary["output_throughput"], lengths or tokens)

    def _say(self, runnable: Sequence[Outcome], now: Outcome, repeat: int, number: int, total: int) -> None:
        """One line before each run: which, how long, and when all will be done."""
        known = [outcome.seconds for outcome in runnable if outcome.seconds is not None]
        usual = sum(known) / len(known) if known else None
        left = None
        if usual is not None:
            left = sum((self.options.repeats - len(outcome.summaries)) * (outcome.seconds or usual)
                       for outcome in runnable if not outcome.failed)
        took = "" if now.seconds is None else f", about {duration(now.seconds)}"
        rest = "" if left is None else f"; all done in about {duration(left)}"
        print(f"{self.description.name} {number}/{total}: {now.cell.name}: repeat {repeat + 1} of "
              f"{self.options.repeats}, {now.requests} requests{took}{rest}", flush=True)


def predicted(values: dict[str, Any]) -> float | None:
    """Tokens/s by the throughput model, for the routing and step times that the configuration states; None where it
    states none."""
    config, algo = validate(values), values["algo"]
    if config.engine.kind != "emulated" or "P" not in algo or algo.get("profile"):
        return None
    roles = roles_of(config)
    tables = nominal_tables(config, roles)
    assert tables is not None
    B, policy = [1] * len(roles), policy_of(config)
    if policy in ("optimal", "hold"):
        spec = system(config, roles, algo["P"], algo["C"], tables)
        B = list(search(spec.varied(hold=tuple(range(spec.M)) if policy == "hold" else ())).B)
    elif policy == "fixed":
        B = list(config.batching.B)
    return predict(config, roles, algo["P"], algo["C"], tables, B).throughput


def drawn_lengths(values: dict[str, Any]) -> float | None:
    """Mean tokens of an answer, where the workload draws how many each one has."""
    workload = values["workload"]
    lengths = workload.get("output_tokens")
    if lengths is None and values["models"]["embedded"]:
        lengths = (workload.get("embedded") or {}).get("output_tokens")
    if lengths is None:
        return None
    return float(workload["max_tokens"] or sum(lengths) / 2)
