"""guidellm, unchanged: content as a list of parts, usage on every chunk."""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.clients.conftest import CONCURRENCY, MAX_TOKENS, MODEL, OFFLINE, PROBLEMS, TOKENIZER, Client, Figures

NAME = "guidellm"
LOAD_REQUESTS, LOAD_TOKENS = 12, 300  # longer than answers that end by themselves


def run(client: Client, requests: int, backend: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """The metrics of the requests that its report calls successful: all."""
    scenario, report = client.folder / "scenario.json", client.folder / "report.json"
    scenario.write_text(json.dumps({"spec": {
        "backend": {"kind": "openai_http", "target": client.url, "model": MODEL, **backend},
        "profile": {"kind": "concurrent", "streams": CONCURRENCY},
        "tokenizer": {"kind": "hf_auto", "model": str(TOKENIZER)},
        **data,
        "constraints": [{"kind": "max_requests", "count": requests}],
        "outputs": [{"kind": "json", "path": str(report)}],
    }, "benchmarks": [{}]}))
    client.run("guidellm", "run", "-c", scenario, "--disable-progress", **OFFLINE)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals == {"successful": requests, "errored": 0, "incomplete": 0, "total": requests}
    found: dict[str, Any] = {name: metric["successful"] for name, metric in benchmark["metrics"].items()
                             if isinstance(metric, dict) and "successful" in metric}
    return found


def test_guidellm_counts_what_the_server_counts(client: Client, agree: Callable[[str, Figures], None]):
    metrics = run(client, PROBLEMS, {"request_format": "/v1/chat/completions", "max_tokens": MAX_TOKENS,
                                     "extras": {"body": {"temperature": 0}}},
                  {"data": [{"kind": "json_file", "path": str(client.file)}],
                   "data_column_mapper": {"kind": "generative_column_mapper",
                                          "column_mappings": {"text_column": "problem"}}})
    agree("guidellm", Figures(PROBLEMS, int(metrics["prompt_token_count"]["total_sum"]),
                              int(metrics["output_token_count"]["total_sum"]),
                              metrics["request_latency"]["mean"] * 1e3,
                              metrics["inter_token_latency_ms"]["mean"]))


def test_guidellm_gets_as_many_tokens_as_it_asks_for(client: Client, counted: Callable[[], Figures]):
    """Synthetic prompts: it sends ignore_eos and the length with each, so that all answers are equally long."""
    metrics = run(client, LOAD_REQUESTS, {"request_format": "/v1/completions"},
                  {"data": [{"kind": "synthetic_text", "prompt_tokens": 32, "output_tokens": LOAD_TOKENS}]})
    assert metrics["output_token_count"]["total_sum"] == LOAD_REQUESTS * LOAD_TOKENS == counted().output_tokens
