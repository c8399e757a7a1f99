"""tokenrouter top: the subservers of a running server, live in the terminal."""
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

from rich.live import Live
from rich.table import Table

from tokenrouter.server.client import add_url, connect, get

DONE = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="one look, then end")


def run(args: argparse.Namespace) -> int:
    with connect(args.url) as client, Live(auto_refresh=False) as live:
        while True:
            live.update(table(get(client, "/server_info").json()), refresh=True)
            if args.once:
                return DONE
            time.sleep(args.every)


def table(info: Mapping[str, Any]) -> Table:
    """One row a subserver, from its last report in /server_info."""
    made = Table(title=f"{info['open_requests']} answers under way")
    for column in ("subserver", "steps/s", "step ms", "batch", "B", "ready", "pending", "admission ms", "KV", "busy"):
        made.add_column(column, justify="left" if column == "subserver" else "right")
    for model, report in zip(info["models"], info["subservers"], strict=False):
        span = max(report["duration_s"], 1e-9)
        made.add_row(
            model["name"], f"{report['steps'] / span:.0f}", _mean(report["step_ms"]), _mean(report["batch_size"]),
            str(report["threshold_B"]), str(report["ready"]), str(report["pending"]), _mean(report["admission_ms"]),
            f"{report['kv_used_tokens'] / report['kv_total_tokens']:.0%}", f"{report['busy_s'] / span:.0%}")
    return made


def _mean(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f}" if values else "-"
