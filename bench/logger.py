"""Where a run is logged besides its files. A logger that fails is dropped with a warning; the run goes on."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.config import LoggerConfig
from bench.records import Progress
from bench.table import result_rows

_LIVE_EVERY_S = 1.0
_TABLE_COLUMNS = (
    "id", "sample", "seed", "input_tokens", "output_tokens", "finish_reason", "ttft_ms", "e2el_ms", "handoffs", "grade",
    "answer", "expected", "text", "error",
)


class NoLogger:
    def live(self, now: Progress, glance: Callable[[], Mapping[str, float]]) -> None: ...

    def finish(self, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], over_time: pd.DataFrame,
               folder: Path) -> None: ...

    def close(self) -> None: ...


class WandbLogger:
    """Weights & Biases. Nothing of it is touched again once a call has failed."""

    def __init__(
        self, config: LoggerConfig, values: Mapping[str, Any], folder: Path, warn: Callable[[str], None]
    ) -> None:
        self._warn, self._next_live = warn, 0.0
        self._before = 0.0, 0  # elapsed_s and tokens at the last live point
        self._run: Any = None
        self._guard(lambda: self._start(config, values, folder))

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever it is, the run matters more
            self._warn(f"logger=wandb: {type(error).__name__}: {' '.join(str(error).split())}; the run goes on without")
            self._run = None

    def _start(self, config: LoggerConfig, values: Mapping[str, Any], folder: Path) -> None:
        import wandb

        mode: Any = config.mode
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        self._run = wandb.init(
            project=config.project, mode=mode, dir=str(folder), name=folder.name, config=dict(values),
            settings=wandb.Settings(silent=True, console="off"),
        )
        for group in ("live", "run"):
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/elapsed_s")

    def live(self, now: Progress, glance: Callable[[], Mapping[str, float]]) -> None:
        """A point of the live curves, once a second: tokens_per_s is that since the point before. `glance`: more of it,
        where the system tells (bench/curves.py)."""
        if self._run is not None and now.phase == "measuring" and now.elapsed_s >= self._next_live:
            self._next_live = now.elapsed_s + _LIVE_EVERY_S
            since_s, tokens = self._before
            self._before = now.elapsed_s, now.tokens
            self._guard(lambda: self._run.log({
                "live/elapsed_s": now.elapsed_s,
                "live/tokens_per_s": (now.tokens - tokens) / max(now.elapsed_s - since_s, 1e-9),
                "live/active": now.active,
                "live/completed": now.done,
                **{f"live/{name}": value for name, value in glance().items()},
            }))

    def finish(self, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], over_time: pd.DataFrame,
               folder: Path) -> None:
        """`over_time`: the curves (bench/curves.py) of what was measured."""
        if self._run is not None:
            self._guard(lambda: self._finish(summary, rows, over_time, folder))

    def _finish(self, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], over_time: pd.DataFrame,
                folder: Path) -> None:
        import wandb

        run = self._run
        for elapsed_s, point in over_time.iterrows():
            run.log({"run/elapsed_s": elapsed_s, **point.dropna().add_prefix("run/").to_dict()})
        run.summary.update(dict(summary))
        run.log({"requests": wandb.Table(
            columns=list(_TABLE_COLUMNS), data=[[row[name] for name in _TABLE_COLUMNS] for row in rows],
            allow_mixed_types=True)})
        run.log({"result": wandb.Table(columns=["figure", "value"], data=[list(row) for row in result_rows(summary)]),
                 "report": wandb.Html(str(folder / "report.html"), inject=False)})  # it has styles of its own
        artifact = wandb.Artifact(f"run-{run.id}", type="run")
        for file in sorted(folder.iterdir()):
            if file.is_file():
                artifact.add_file(str(file))
        run.log_artifact(artifact)
        run.finish(exit_code=0)
        self._run = None

    def close(self) -> None:
        """After a run that ended without a result."""
        if self._run is not None:
            self._guard(lambda: self._run.finish(exit_code=1))


def make_logger(
    config: LoggerConfig, values: Mapping[str, Any], folder: Path, warn: Callable[[str], None]
) -> NoLogger | WandbLogger:
    return WandbLogger(config, values, folder, warn) if config.kind == "wandb" else NoLogger()
