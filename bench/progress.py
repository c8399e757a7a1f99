"""How far a run is: a bar on a terminal, a line now and then elsewhere. Both go to standard error."""
from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from bench.records import Progress
from tokenrouter.waiting import EVERY_S, FIRST_S, Waiting


class ProgressView:
    """Shows what it is called with; a context manager, so that the bar is taken down before results are printed."""

    def __init__(self, console: Console) -> None:
        self._console, self._phase = console, ""
        self._next_line = time.monotonic() + FIRST_S
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
            TextColumn("left:"), TimeRemainingColumn(), console=console, transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> ProgressView:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, now: Progress) -> None:
        rate = f"{now.tokens / max(now.elapsed_s, 1e-9):,.0f} tok/s"
        if self._console.is_terminal:
            if now.phase != self._phase:
                for task in self._bar.task_ids:
                    self._bar.remove_task(task)
                self._task = self._bar.add_task(now.phase, total=now.total, rate=rate)
            self._bar.update(self._task, completed=now.done, rate=rate)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + EVERY_S
            left_s = now.elapsed_s / now.done * (now.total - now.done) if now.done else 0.0
            left_s = max(left_s, now.least_left_s)
            left = f", left: {left_s:.0f} s" if left_s else ""
            self._console.print(f"{now.phase}: {now.done}/{now.total} requests, {rate}{left}", highlight=False,
                                soft_wrap=True)
        self._phase = now.phase


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Says what the block waits for, and for how long now."""
    if console.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Bar(*columns, console=console, transient=True) as bar:
            bar.add_task(f"waiting for {what}", total=None)
            yield
        return
    with Waiting(lambda line: console.print(line, highlight=False, soft_wrap=True), lambda: what):
        yield
