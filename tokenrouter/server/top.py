"""tokenrouter top: the subservers of a running server, live in the terminal."""
from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

import httpx
from rich.live import Live
from rich.table import Table

from tokenrouter.core import InputError

DONE = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="where the server is (default: %(default)s)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="one look, then end")


def run(args: argparse.Namespace) -> int:
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=args.url, headers=headers, timeout=10) as client, Live(auto_refresh=False) as live:
        while True:
            try:
                answer = client.get("/server_info").raise_for_status()
            except httpx.HTTPError as error:
                raise InputError(f"--url={args.url}: {error}; allowed is the address of a running server") from None
            live.update(table(answer.json()), refresh=True)
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
