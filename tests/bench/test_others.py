from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from bench.others import Others

SPIN = "import time; end = time.time() + 3\nwhile time.time() < end: pass"
# Started by a process that has ended: nobody's child any more.
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN!r}])"


@pytest.mark.parametrize(("code", "counts"), [(SPIN, False), (ORPHAN, True)])
def test_only_what_others_compute_counts(code: str, counts: bool) -> None:
    """In CPU seconds, so that a busy machine changes nothing but what others take beside it."""
    def taken() -> float:
        started = subprocess.Popen([sys.executable, "-c", code])
        others, began = Others(), time.perf_counter()
        while time.perf_counter() - began < 2:
            time.sleep(0.05)
        found = others.cores()
        started.wait()
        return found

    idle = Others()
    time.sleep(1)
    background = idle.cores()
    free = (os.cpu_count() or 1) - background
    if free < 0.5:
        pytest.skip("nothing can be seen beside what this machine does")
    assert (taken() - background > 0.25 * min(1.0, free)) is counts
