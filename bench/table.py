"""The result of a run in words and figures."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def result_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ran on what, how fast, how well, and whether it counts."""
    routing, quality, validity = summary["routing"], summary["quality"], summary["validity"]
    origin, load = summary["provenance"], summary["load"]
    models = ", ".join(
        f"{role}={model['id']} ({model['params'] / 1e6:.2f}M)" for role, model in summary["models"].items())
    B = ", ".join(f"{role} {b}" for role, b in routing["threshold_B"].items())
    hardware = summary["hardware"]
    return [
        ("models", models),
        ("data", f"{origin['data_source']}, version {origin['data_version']}"),
        ("on", f"{origin['gpu'] or origin['cpu']}, {hardware['cores']} cores, {hardware['threads']} thread(s) a model, "
               f"engine {summary['engine']}"),
        ("load", load_of(summary) + (f"; launch threshold: {B}" if B else "")),
        ("requests", f"{summary['completed']} completed, {summary['failed']} failed, "
                     f"{summary['total_output_tokens']:,} tokens in {summary['duration_s']:.1f} s"),
        ("output", f"{summary['output_throughput']:,.0f} tok/s (steady {summary['steady']['output_throughput']:,.0f})"),
        *([] if summary.get("request_goodput") is None else [
            ("goodput", f"{summary['request_goodput']:.2f} of {summary['request_throughput']:.2f} requests/s keep "
                        + ", ".join(f"{name} {bound:g}" for name, bound in load["slo"].items() if bound))]),
        *((name, f"p50 {_ms(summary[f'median_{name}_ms'])}   p99 {_ms(summary[f'p99_{name}_ms'])}")
          for name in ("ttft", "tpot", "e2el")),
        ("routing", f"{share(routing['llm_token_fraction'])} of the tokens by the LLM, "
                    f"{number(routing['handoffs_per_100_tokens'])} handoffs per 100 tokens"),
        ("quality", _quality(quality)),
        ("valid", ("yes" if validity["valid"] else "no: " + "; ".join(validity["reasons"])) + f" ({validity['kind']})"),
    ]


def load_of(summary: Mapping[str, Any]) -> str:
    """Who sends when."""
    load = summary["load"]
    match load["mode"]:
        case "poisson":
            return f"{load['request_rate']:g} requests/s"
        case "batch":
            return f"all {load['num_requests']} requests at once"
    return f"concurrency {load['concurrency']}"


def result_table(summary: Mapping[str, Any]) -> Table:
    """The same for the terminal."""
    title = f"{summary['algo']} · {summary['workload']} · {summary['system']}"
    table = Table(title=title, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in result_rows(summary):
        table.add_row(name, text)
    return table


def accuracy(quality: Mapping[str, Any] | None) -> str | None:
    """Of a summary's `quality`, with its interval; None if nothing was graded."""
    if quality is None or quality["value"] is None:
        return None
    low, high = quality["ci95"]
    return f"{quality['value']:.1%} [{low:.1%}, {high:.1%}]"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _quality(quality: Mapping[str, Any] | None) -> str:
    found = accuracy(quality)
    return "not graded" if quality is None or found is None else f"{found} {quality['metric']}, n={quality['n']}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ms"
