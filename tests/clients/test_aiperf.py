"""aiperf, unchanged: streamed chat with usage, /metrics scraped meanwhile."""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.clients.conftest import CONCURRENCY, MAX_TOKENS, MODEL, PROBLEMS, TOKENIZER, Client, Figures, Problem

NAME = "aiperf"
LOAD_REQUESTS, LOAD_TOKENS = 12, 300  # longer than answers that end by themselves


def run(client: Client, requests: int, *arguments: object) -> dict[str, Any]:
    """Its export: of each metric the statistics. The tokenizer is a folder, which HF_HUB_OFFLINE would keep it from."""
    out = client.folder / "out"
    client.run("aiperf", "profile", "--model", MODEL, "--url", client.url, "--tokenizer", TOKENIZER,
               "--concurrency", f"{CONCURRENCY}", "--request-count", f"{requests}", "--use-server-token-count",
               "--workers-max", "1", "--record-processor-service-count", "1", "--no-gpu-telemetry", "--ui", "none",
               "--random-seed", "0", "--output-artifact-dir", out, *map(str, arguments))
    export: dict[str, Any] = json.loads((out / "profile_export_aiperf.json").read_text())
    assert export["request_count"]["avg"] == requests and not export["error_summary"] and export["is_complete"]
    scraped = json.loads((out / "server_metrics_export.json").read_text())
    assert scraped["summary"]["endpoints_successful"] == [f"{client.url}/metrics"]
    assert {"sglang:generation_tokens", "tokenrouter:batch_size"} <= scraped["metrics"].keys()
    return export


def test_aiperf_counts_what_the_server_counts(client: Client, agree: Callable[[str, Figures], None],
                                              problems: list[Problem]):
    file = client.folder / "turns.jsonl"
    file.write_text("".join(json.dumps({"text": problem.problem}) + "\n" for problem in problems))
    export = run(client, PROBLEMS, "--endpoint-type", "chat", "--streaming", "--input-file", file,
                 "--custom-dataset-type", "single-turn", "--dataset-sampling-strategy", "sequential",
                 "--extra-inputs", "temperature:0", "--extra-inputs", f"max_completion_tokens:{MAX_TOKENS}")
    agree("aiperf", Figures(PROBLEMS, int(export["total_usage_prompt_tokens"]["avg"]),
                            int(export["total_usage_completion_tokens"]["avg"]), export["request_latency"]["avg"],
                            export["inter_token_latency"]["avg"]))


def test_aiperf_gets_as_many_tokens_as_it_asks_for(client: Client, counted: Callable[[], Figures]):
    """Synthetic prompts, and answers that go on to the length asked for."""
    export = run(client, LOAD_REQUESTS, "--endpoint-type", "completions", "--streaming",
                 "--synthetic-input-tokens-mean", 32, "--output-tokens-mean", LOAD_TOKENS,
                 "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{LOAD_TOKENS}")
    total = int(export["total_usage_completion_tokens"]["avg"])
    assert total == LOAD_REQUESTS * LOAD_TOKENS == counted().output_tokens
