"""Says now and then what is waited for, or how far something is."""
from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Self

FIRST_S, EVERY_S = 2.0, 10.0  # until the first line, and between two


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Lines:
    """A context: inside it `tell` is called now and then, with the seconds that have passed."""

    def __init__(self, tell: Callable[[float], object]) -> None:
        self._tell = tell
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="lines")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def over(self) -> bool:
        return self._end.is_set()

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        began, pause = time.monotonic(), FIRST_S
        while not self._end.wait(pause):
            self._tell(time.monotonic() - began)
            pause = EVERY_S


class Waiting(Lines):
    """`say` gets each line: what `what` gives at that moment, and for how long it is waited for."""

    def __init__(self, say: Callable[[str], object], what: Callable[[], str]) -> None:
        super().__init__(lambda seconds: say(f"waiting for {self.what()}: {seconds:.0f} s"))
        self.what = what
