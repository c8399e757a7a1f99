"""A stand-in for bench/run.py under bench/paper.py: nothing is started."""
from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import series
from bench.reproduce.description import Description, cells, load
from bench.reproduce.running import Options, Outcome, Series


def run_summary(command: list[str], throughput: float = 100.0, tokens: int = 200, minute: int = 0) -> dict[str, Any]:
    """Of a run of bench/run.py with these overrides, each of whose answers has so many tokens; made in that minute."""
    given = dict(word.split("=", 1) for word in command)
    requests = int(given["load.num_requests"])
    models = ["large"] if given.get("system") == "llm_only" else ["small", "large"]
    return {
        "algo": given.get("algo"), "threshold": 0.5, "duration_s": 20.0, "quality": None,
        "workload": "aime", "engine": "torch", "sampling": {}, "hardware": {"cores": 2},
        "models": {role: {"id": role, "params": 1_000_000} for role in models}, "completed": requests,
        "load": {"num_requests": requests, "concurrency": 4, "seed": 0},
        "total_output_tokens": tokens * requests, "output_throughput": throughput,
        "steady": {"output_throughput": 1.1 * throughput}, "mean_ttft_ms": 5.0, "mean_e2el_ms": 2000.0,
        "routing": {"predicted_throughput": None, "llm_token_fraction": 0.1},
        "validity": {"valid": True, "reasons": []},
        "provenance": {"command": " ".join(["python bench/run.py", *command]), "models_hash": "m",
                       "data_source": "embedded:x", "data_version": "1", "evidence": "measured", "cpu": "c",
                       "gpu": None, "git_sha": "abcdefgh", "dirty": False,
                       "date": f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00"}}


class Runs:
    """Stands for bench/run.py: `speed` says the tokens/s of a system; one that it lacks fails. `tokens`: of an answer,
    where it is not 200."""

    def __init__(self, speed: dict[str, float]) -> None:
        self.speed, self.made, self.stop_at = speed, [], -1
        self.tokens: dict[str, int] = {}

    def __call__(self, command: list[str]) -> int:
        *overrides, folder = command[2:]
        self.made.append(overrides)
        system = next(word for word in overrides if word.startswith("system=")).removeprefix("system=")
        if len(self.made) == self.stop_at:
            raise series.Interrupted(signal.SIGTERM)
        if system not in self.speed:
            return 1
        file = Path(folder.removeprefix("hydra.run.dir="), "summary.json")
        file.parent.mkdir(parents=True)
        tokens = self.tokens.get(system, 200)
        summary = run_summary(overrides, self.speed[system], tokens, len(self.made))
        file.write_text(json.dumps(summary))
        file.with_name("requests.jsonl").write_text("".join(json.dumps({
            "id": f"p{i}", "sample": 0, "output_tokens": tokens, "ttft_ms": 5.0, "e2el_ms": 2000.0, "grade": None,
            "error": None}) + "\n" for i in range(summary["completed"])))
        return 0

    def measured(self) -> list[tuple[str, int]]:
        """System and number of requests of each run, without trials."""
        given = [dict(word.split("=", 1) for word in words) for words in self.made]
        return [(one["system"], int(one["load.num_requests"])) for one in given if int(one["load.num_requests"]) != 8]


def execute(
    tmp_path: Path, systems: Sequence[str] = ("LLM-only", "Official Code", "TokenRouter"), **options: Any,
) -> tuple[Description, list[Outcome]]:  # fmt: skip
    """Table 2's R2R."""
    table = load("table2")
    made = Series(table, Options(out=str(tmp_path), **options), [])
    outcomes = made.prepare([one for one in cells(table, "cpu")
                             if dict(one.labels)["algo"] == "R2R" and dict(one.labels)["system"] in systems])
    made.execute(outcomes)
    return table, outcomes
