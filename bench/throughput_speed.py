"""How long a search for B* takes: `python bench/throughput_speed.py` prints the median of some runs of each setting."""
from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time

from rich.console import Console
from rich.table import Table

from tokenrouter.throughput.chain import solve
from tokenrouter.throughput.search import search
from tokenrouter.throughput.spec import Spec

RUNS = 3


def r2r(N: int) -> Spec:
    """The paper's R2R setting (section D.4)."""
    return Spec.parse({
        "N": N, "P": [[0.65, 0.35], [1, 0]], "C": [[1, 0], [1, 0]], "L_ms": [6.0, 27.9], "delta_ms": 0.1})


def three_models(N: int) -> Spec:
    """An ensemble of three models with weights 0.5, 0.3 and 0.2."""
    return Spec.parse({
        "N": N, "P": [[0.5, 0.3, 0.2]] * 3, "C": [[1] * 3] * 3, "L_ms": [6.0, 12.0, 27.9], "delta_ms": 0.1})


def main() -> None:
    table = Table("setting", "result", "seconds", "CPU seconds", title="Search for B*")

    def row(setting: str, work: Callable[[], object]) -> None:
        walls, cpus, result = [], [], None
        for _ in range(RUNS):
            wall, cpu = perf_counter(), process_time()
            result = work()
            walls.append(perf_counter() - wall)
            cpus.append(process_time() - cpu)
        table.add_row(setting, str(result), f"{median(walls):.3f}", f"{median(cpus):.3f}")

    for N in (8, 16, 32, 64):
        row(f"R2R, N = {N}, over B1 (B0 = 1)", lambda N=N: search(r2r(N), fixed={0: 1}).B)
        row(f"R2R, N = {N}, over both", lambda N=N: search(r2r(N)).B)
    row("R2R, N = 16, the paper's chain at B = (1, 1)", lambda: solve(r2r(16), (1, 1)).states)
    for N in (4, 8, 16):
        row(f"three models, N = {N}", lambda N=N: search(three_models(N)).B)
    Console().print(table)


if __name__ == "__main__":
    main()
