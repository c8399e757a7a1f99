"""A plan for the eye: tables and bars in the terminal, curves in a PNG file."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from tokenrouter.core import InputError
from tokenrouter.throughput.search import SIMULATION, Search, Value
from tokenrouter.throughput.sensitivity import Effect
from tokenrouter.throughput.spec import Spec, Thresholds

_HEIGHT = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def line(found: Search, model: int) -> dict[int, float]:
    """T over one threshold, the others at B*: what the search has looked at of it."""
    best = found.B
    return {
        B[model]: value
        for B, value in found.table.items()
        if B[:model] == best[:model] and B[model + 1 :] == best[model + 1 :]
    }


def show_system(console: Console, spec: Spec) -> None:
    latencies = ", ".join(
        f"L_{i} = {table[0]:g} ms" if len(set(table)) == 1 else f"L_{i} = {table[0]:g} to {table[-1]:g} ms"
        for i, table in enumerate(spec.L_ms)
    )
    console.print(f"N = {spec.N} requests, {spec.M} models, {latencies}")
    console.print(f"P = {_matrix(spec.P)}, C = {_matrix(spec.C)}", highlight=False)
    if spec.hold:
        console.print(f"hold rule on models {list(spec.hold)}")
    if spec.contention is not None:
        console.print(f"models that share a device run {spec.contention.factor:g} times slower together")


def show_search(console: Console, spec: Spec, found: Search) -> None:
    """T over each threshold as table and chart, then B* and its gain."""
    for model in range(spec.M):
        curve = line(found, model)
        if len(curve) < 2:
            continue
        others = ", ".join(f"B_{i} = {value}" for i, value in enumerate(found.B) if i != model)
        console.print(f"T over B_{model}" + (f", where {others}" if others else ""), highlight=False)
        table = Table()
        for heading in (f"B_{model}", "tok/s", "to eager"):
            table.add_column(heading, justify="right")
        for value, throughput in curve.items():
            mark = " *" if value == found.B[model] else ""
            ratio = throughput / found.eager.throughput
            table.add_row(f"{mark} {value}", f"{throughput:.2f}", f"{ratio:.3f}", style="bold" if mark else "")
        console.print(table)
        for row in chart(curve):
            console.print(row, highlight=False, soft_wrap=True)
    console.print(f"eager   B = {list(spec.eager)}  {_value(found.eager)}", highlight=False)
    console.print(f"optimal B = {list(found.B)}  {_value(found.best)}, {found.gain:.3f} x eager", highlight=False)
    extent = "every feasible B" if found.exhaustive else f"coordinate descent, {len(found.table)} B looked at"
    console.print(f"search: {found.method}, {extent}", highlight=False)


def show_value(console: Console, name: str, B: Thresholds, value: Value, best: float) -> None:
    ratio = value.throughput / best
    console.print(f"{name:7} B = {list(B)}  {_value(value)}, {ratio:.3f} x optimal", highlight=False)


def show_sensitivity(console: Console, effects: Iterable[Effect], B: Thresholds) -> None:
    console.print(f"If the figures are 20 % off: B* then, and what keeping B = {list(B)} loses", highlight=False)
    table = Table()
    for heading in ("change", "B*", "T(B*) tok/s", "loss"):
        table.add_column(heading, justify="left" if heading == "change" else "right")
    for effect in effects:
        loss = "infeasible" if effect.loss is None else f"{effect.loss:.2%}"
        table.add_row(effect.change, str(list(effect.B)), f"{effect.throughput:.2f}", loss)
    console.print(table)


def chart(curve: dict[int, float], height: int = _HEIGHT) -> list[str]:
    """Columns of block characters, one for each B, from a little below the lowest value to the highest."""
    low, high = min(curve.values()), max(curve.values())
    floor = low - (high - low or abs(high) or 1.0) / height
    levels = [round((value - floor) / (high - floor) * height * 8) for value in curve.values()]
    rows = []
    for row in reversed(range(height)):
        label = f"{floor + (high - floor) * (row + 1) / height:10.1f} ┤"
        rows.append(label + "".join("  " + _EIGHTHS[min(8, max(0, level - 8 * row))] * 2 for level in levels))
    rows.append(" " * 11 + "└" + "".join(f"{B:>4}" for B in curve))
    return rows


def save_plot(path: str, spec: Spec, found: Search) -> None:
    """Curves over each threshold, eager and B* marked, as a PNG (or what the file's suffix says)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes_of: Sequence[int] = [model for model in range(spec.M) if len(line(found, model)) > 1] or [0]
    figure, axes = pyplot.subplots(1, len(axes_of), figsize=(5 * len(axes_of), 4), squeeze=False)
    for axis, model in zip(axes[0], axes_of, strict=True):
        curve = line(found, model)
        axis.plot(list(curve), list(curve.values()), marker=".")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.plot([found.B[model]], [curve[found.B[model]]], "o", label=f"B* = {list(found.B)}")
        axis.axhline(found.eager.throughput, linestyle="--", color="grey", label="eager")
        axis.set(xlabel=f"$B_{model}$", ylabel="throughput (tokens/s)", title=f"N = {spec.N}")
        axis.legend()
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"--plot: {path} cannot be written ({error})") from error
    finally:
        pyplot.close(figure)


def _matrix(rows: Sequence[Sequence[float]]) -> str:
    return "[" + ", ".join("[" + ", ".join(f"{item:.4g}" for item in row) + "]" for row in rows) + "]"


def _value(value: Value) -> str:
    if value.method == SIMULATION:
        return f"{value.throughput:.2f} ± {1.96 * value.standard_error:.2f} tok/s ({value.method})"
    return f"{value.throughput:.2f} tok/s ({value.method})"
