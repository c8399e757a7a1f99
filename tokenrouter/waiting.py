"""Says now and then what is waited for."""
from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

FIRST_S, EVERY_S = 1.0, 5.0  # until the first line, and between two


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Waiting:
    """A context: inside it `say` gets a line now and then, with what `what` gives at that moment and for how long."""

    def __init__(self, say: Callable[[str], object], what: Callable[[], str]) -> None:
        self.what, self._say = what, say
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True, name="waiting")

    def __enter__(self) -> Waiting:
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

    def _tell(self) -> None:
        began, pause = time.monotonic(), FIRST_S
        while not self._end.wait(pause):
            self._say(f"waiting for {self.what()}: {time.monotonic() - began:.0f} s")
            pause = EVERY_S
