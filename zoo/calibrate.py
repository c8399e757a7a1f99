"""Finds a threshold on held-out problems: `python -m zoo.calibrate algo=r2r target=quality:0.98 [problems=500]`.

Targets: `llm_fraction:0.1` (share of tokens that the large model writes), `handoff:0.35` (share of the small model's
proposals that are handed over), `quality:0.98` (accuracy over the large model's; the least use of it that reaches
that). The curve of all thresholds tried is stored as JSON beside the router's weights, or where `out=` says. An
interrupted calibration goes on when the same command is given again.
"""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from tokenrouter.core import InputError
from tokenrouter.interface import BaseRouter, StepResult
from tokenrouter.paths import ROOT, resolve
from zoo.cli import convert, progress_bar, run, split_arguments
from zoo.offline import Offline
from zoo.points import Points, identity, outcome_of, plain
from zoo.quality import Outcome, as_row, measure
from zoo.setup import Setup
from zoo.tasks.rows import Task
from zoo.tasks.workload import Workload
from zoo.threshold import ThresholdRouter

METRICS = {"llm_fraction": "llm_token_fraction", "handoff": "handoff", "quality": "quality"}
LEVELS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35)


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    target: str
    problems: int = 500  # of the `calibration` split
    seed: int = 0
    refine: int = 3  # thresholds tried between the two of the coarse curve that enclose the target
    decode_batch: int = 48
    out: str = ""


class Curve:
    """Measured points, by level: the share of the proposals along the large model's answers that leave."""

    def __init__(
        self, setup: Setup, workload: Workload, tasks: Sequence[Task], decode_batch: int, kept: Points
    ) -> None:
        self.setup, self.workload, self.tasks = setup, workload, tasks
        self._batch, self._kept = decode_batch, kept
        roles = setup.algorithm.roles
        length = max(len(setup.prompt(task)) for task in tasks) + workload.max_tokens
        self.engines = [setup.engine(role, decode_batch, length) for role in roles]
        self.large = len(roles) - 1
        self.points: dict[float, dict[str, Any]] = {}
        alone = kept.get("always", self._large_alone)
        self.llm, self.scores = outcome_of(alone["outcome"]), torch.tensor(alone["scores"], dtype=torch.float64)
        self.points[1.0] = {"threshold": "always", **as_row(self.llm, self.llm)}

    def measure(self, level: float) -> dict[str, Any]:
        """The point of a level, decoded at the threshold that belongs to it."""
        if level not in self.points:
            router = self.setup.algorithm.router(self.setup.algorithm.roles[0])
            assert isinstance(router, ThresholdRouter)
            quantile = self.scores.quantile(level if router.leaves == "<" else 1 - level)
            threshold = float(quantile.clamp(0, 1)) if level else "never"
            found = outcome_of(self._kept.get(threshold, partial(self._at, threshold)))
            self.points[level] = {"threshold": threshold, **as_row(found, self.llm)}
        return self.points[level]

    def _at(self, threshold: float | str) -> dict[str, Any]:
        offline = self._offline()
        set_threshold(offline.routers, threshold)
        return plain(self._run(offline, f"{threshold:.4f}" if isinstance(threshold, float) else threshold))

    def _large_alone(self) -> dict[str, Any]:
        """Its outcome, and the scores of the small model's proposals along its answers."""
        offline, scores = self._offline(), list[torch.Tensor]()
        router = offline.routers[0]
        assert isinstance(router, ThresholdRouter)
        _listen(router, scores)
        # Each proposal is scored and then replaced: what comes out are the large model's own answers. A large model
        # that has the threshold too returns as soon as it can, so that all of the small one's scores are seen.
        set_threshold(offline.routers[1:], "never")
        set_threshold([router], "always")
        outcome = self._run(offline, "always, which is the large model alone")
        return {"outcome": plain(outcome), "scores": torch.cat(scores).double().tolist()}

    def _offline(self) -> Offline:
        return Offline(self.setup.algorithm, self.engines, batch_size=self._batch)

    def _run(self, offline: Offline, threshold: str) -> Outcome:
        with progress_bar() as bar:
            task = bar.add_task(f"threshold {threshold}", total=len(self.tasks))
            return measure(self.setup, self.workload, self.tasks, offline, self.large, partial(bar.advance, task))[0]


def _listen(router: ThresholdRouter, heard: list[torch.Tensor]) -> None:
    scores = router.scores

    def listening(result: StepResult) -> tuple[torch.Tensor, torch.Tensor]:
        found = scores(result)
        heard.append(found[0][found[1] == router.threshold].cpu())  # others are not decided by it
        return found

    router.scores = listening  # type: ignore[method-assign]


def set_threshold(routers: Iterable[BaseRouter], value: float | str) -> None:
    """Of those that have one."""
    for router in routers:
        for param in router.params:
            if param.name == "threshold":
                router.threshold = param.parse(value)  # type: ignore[attr-defined]


def parse_target(target: str) -> tuple[str, float]:
    metric, _, number = target.partition(":")
    allowed = f"allowed is one of {', '.join(METRICS)}, a colon, and a number in (0, 1]"
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"target={target}: {allowed}") from None
    if metric not in METRICS or not 0 < value <= 1:
        raise InputError(f"target={target}: {allowed}")
    return metric, value


def search(curve: Curve, metric: str, value: float, refine: int) -> float:
    """The level that meets the target: for quality the least that reaches it, else the one that comes closest."""
    field = METRICS[metric]
    for level in (0.0, *LEVELS):
        curve.measure(level)
    for _ in range(refine):
        high = _reached(curve, field, value)
        low = max((level for level in curve.points if level < high), default=high)
        if low == high:
            break
        curve.measure(math.sqrt(low * high) if low else high / 2)
    if metric == "quality":
        return _reached(curve, field, value)
    return min(sorted(curve.points), key=lambda level: abs(curve.points[level][field] - value))


def _reached(curve: Curve, field: str, value: float) -> float:
    """The least level from which on all reach the value: one that does by luck, below others that do not, is none."""
    reached = 1.0
    for level in sorted(curve.points, reverse=True):
        if curve.points[level][field] < value:
            break
        reached = level
    return reached


def main(arguments: list[str]) -> None:
    overrides, own = split_arguments(arguments)
    options = convert(own, Options)
    metric, value = parse_target(options.target)
    setup = Setup.compose(overrides, options.seed)
    algo = setup.config["algo"]
    entry = setup.algorithm.router(setup.algorithm.roles[0])
    if not isinstance(entry, ThresholdRouter) or len(setup.algorithm.roles) != 2:
        raise InputError(f"algo={algo['name']}: has no threshold of its small model; allowed is one that has")
    if options.problems < 1:
        raise InputError(f"problems={options.problems}: allowed is >= 1")
    setup.check_vocabularies()
    workload, tasks = setup.problems("calibration", options.problems)
    about = {**identity(setup), "data": workload.data_source, "problems": len(tasks), "batch": options.decode_batch}
    file = Path(options.out) if options.out else default_file(algo)
    with Points("calibrate", about) as kept:
        curve = Curve(setup, workload, tasks, options.decode_batch, kept)
        level = search(curve, metric, value, options.refine)
        chosen = curve.points[level]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({
            "algo": algo["name"], "target": options.target, "threshold": chosen["threshold"], "chosen": chosen,
            "models": {role: setup.model_name(role) for role in setup.algorithm.roles},
            "data": workload.data_source, "problems": options.problems, "seed": options.seed,
            "curve": [{"level": at, **curve.points[at]} for at in sorted(curve.points)],
        }, indent=1) + "\n")
    _print(curve, level, entry, file)


def default_file(algo: dict[str, Any]) -> Path:
    """Beside the weights, or in the algorithm's folder where it has none."""
    if "weights" in algo:
        return resolve(algo["weights"]).with_suffix(".json")
    return ROOT / "zoo" / algo["name"] / "calibration.json"


def _print(curve: Curve, chosen: float, router: ThresholdRouter, file: Path) -> None:
    table = Table("threshold", "LLM tokens", "handoffs", "accuracy", "quality", "95 %")
    for level in sorted(curve.points):
        point = curve.points[level]
        threshold = point["threshold"]
        table.add_row(
            threshold if isinstance(threshold, str) else f"{threshold:.4f}", f"{point['llm_token_fraction']:.2%}",
            f"{point['handoff']:.2%}", f"{point['accuracy']:.1%}", f"{point['quality']:.1%}",
            "{:.1%} to {:.1%}".format(*point["quality_ci95"]), style="bold" if level == chosen else "",
        )
    point = curve.points[chosen]
    console = Console()
    console.print(table)
    console.print(
        f"threshold {point['threshold']}: {router.params[0].doc}. The large model writes "
        f"{point['llm_token_fraction']:.1%} of the tokens; {point['handoff']:.1%} of the small model's proposals are "
        f"handed over; accuracy is {point['quality']:.1%} of the large model's on {len(curve.tasks)} problems. "
        f"Curve: {file}", soft_wrap=True, highlight=False,
    )


if __name__ == "__main__":
    run(main)
