"""Equality, step times and the ladder on one device: python bench/gpu_check.py --out FOLDER [--seconds 450]

In the order in which they are worth their time: the embedded pair gives the reference's tokens on the device (fp32);
L(b) of a small and a large Qwen3 shape with random weights, from graphs and eager; then `algo=replay` at p = .35 in
the systems of Table 6 at N = 4, 8, 1, by bench/run.py, which predicts each run from its own step times. Shapes get
smaller where the device's memory asks for it; what is not reached in time is skipped, and check.json says so.
Without a GPU the same runs at tiny shapes, in fp32 and without graphs.
"""
from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from tokenrouter.engine.base import Row  # noqa: E402 - found once the path is set
from tokenrouter.engine.memory import footprint  # noqa: E402
from tokenrouter.engine.torch.engine import TorchEngine  # noqa: E402

GB = 1024**3
KV_GB, RESERVE_GB = 4.0, 4.0
CAPACITY = 8192  # tokens of KV of each model
CONTEXT, ROUNDS = 256, 12
BATCHES, EXTENDS = (1, 2, 4, 8), (2, 4, 8)
LADDER = {"eager": ["system=eager_async"], "step_sync": ["system=step_sync"], "model_sync": ["system=model_sync"],
          "optimal": ["batching=optimal"]}
_QWEN3 = dict(vocab_size=151936, head_dim=128, num_key_value_heads=8, max_position_embeddings=40960, eos_token_id=0)


@dataclass(frozen=True)
class Shape:
    """A Qwen3 by its published sizes."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    tied: bool = False

    def config(self) -> Qwen3Config:
        return Qwen3Config(hidden_size=self.hidden, intermediate_size=self.inner, num_hidden_layers=self.layers,
                           num_attention_heads=self.heads, tie_word_embeddings=self.tied, **_QWEN3)


SMALL = Shape("Qwen3-0.6B", 1024, 3072, 28, 16, True)
LARGE = (Shape("Qwen3-32B", 5120, 25600, 64, 64), Shape("Qwen3-14B", 5120, 17408, 40, 40),
         Shape("Qwen3-8B", 4096, 12288, 36, 32), Shape("Qwen3-4B", 2560, 9728, 36, 32, True),
         Shape("Qwen3-1.7B", 2048, 6144, 28, 16, True))


def choose(free_bytes: int) -> tuple[list[tuple[str, Qwen3Config]], list[str]]:
    """The pair of shapes that fits in bf16 with its KV, and a word on each that does not."""
    left = free_bytes - int((KV_GB + RESERVE_GB) * GB) - footprint(SMALL.config(), "bfloat16").weight_bytes
    skipped = []
    for shape in LARGE:
        need = footprint(shape.config(), "bfloat16").weight_bytes
        if need <= left:
            return [("small", SMALL.config()), ("large", shape.config())], skipped
        skipped.append(f"{shape.name}: needs {need / GB:.0f} GB of weights, {max(left, 0) / GB:.0f} GB are left")
    raise SystemExit(f"no shape fits: {skipped[-1]}")


def tiny() -> list[tuple[str, Qwen3Config]]:
    common: dict[str, Any] = _QWEN3 | {"vocab_size": 512, "head_dim": 16, "num_key_value_heads": 2}
    return [(name, Qwen3Config(hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=2,
                               **common)) for name, layers in (("small", 1), ("large", 3))]


def step_times(path: Path, device: str, dtype: str, graphs: str) -> dict[str, Any]:
    """Median ms of a step by rows and tokens a row, logits argmax included; and from what it ran."""
    engine = TorchEngine(str(path), device=device, dtype=dtype, load_format="dummy", capacity_tokens=CAPACITY,
                         graphs=graphs)
    for n in range(max(BATCHES)):
        engine.open(str(n), [1] * CONTEXT)
        engine.allocate(str(n), CONTEXT)
        engine.step([Row(str(n), [1] * CONTEXT)])
    table = {}
    for batch in BATCHES:
        for tokens in (1, *EXTENDS):
            times = []
            for _ in range(ROUNDS):
                for n in range(batch):
                    engine.truncate(str(n), CONTEXT)
                    engine.allocate(str(n), tokens)
                rows = [Row(str(n), [1] * tokens) for n in range(batch)]
                start = time.perf_counter()
                engine.step(rows).logits.argmax(-1).tolist()
                times.append(1e3 * (time.perf_counter() - start))
            table[f"{batch}x{tokens}"] = statistics.median(times[2:])
    counters = engine.counters
    ran = {name: getattr(counters, name) for name in ("graph_decodes", "graph_extends", "eager_steps")}
    return {"ms": table, "ran": ran, "params": engine.info.num_params}


def equality(out: Path, device: str) -> list[list[str]]:
    """A run of the embedded pair on the device, and the check of its every token against the reference."""
    run = str(out / "equality")
    return [[sys.executable, "bench/run.py", "algo=r2r", "workload=aime", f"hardware.device={device}",
             "hardware.pin=[]", "load.concurrency=4", "load.num_requests=8", "load.warmup=0", "logger=none",
             f"hydra.run.dir={run}"],
            [sys.executable, "bench/verify.py", run]]


def ladder(folders: Path, out: Path, cuda: bool) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each run, the most telling ones first."""
    device, dtype = ("cuda:0", "bfloat16") if cuda else ("cpu", "float32")
    shared = [
        "algo=replay", "workload=random", "workload.output_tokens=[48,96]", "sampling.ignore_eos=true", "logger=none",
        "models=tiny", "models.embedded=false", "models.tokenizer=null", "models.load_format=dummy",
        *(f"models.roles.{role}.{field}={value}" for role in ("small", "large")
          for field, value in (("path", folders / role), ("dtype", dtype))),
        f"hardware.device={device}", "hardware.pin=[]", f"engine.capacity_tokens={CAPACITY}"]
    for graphs, N in (("auto", 4), ("auto", 8), ("off", 4), ("auto", 1), ("off", 8), ("off", 1)):
        if graphs == "off" and not cuda:
            continue  # a CPU has none anyway
        for rung, overrides in LADDER.items():
            name = f"N{N}-{rung}-graphs_{graphs}"
            yield name, [sys.executable, "bench/run.py", *shared, *overrides, f"engine.options.graphs={graphs}",
                         f"load.concurrency={N}", f"load.num_requests={2 * N}", f"hydra.run.dir={out / name}"]


def measured(folder: Path) -> dict[str, Any]:
    """Tokens/s of a run, what the model of docs/throughput.md predicts for it, and from what its steps came."""
    summary = json.loads((folder / "summary.json").read_text())
    return {"tokens_per_s": summary["output_throughput"], "predicted": summary.get("prediction")}


def check(out: Path, seconds: float) -> dict[str, Any]:
    """Everything in turn until the time is up; the report is written after each part."""
    end = time.monotonic() + seconds
    cuda = torch.cuda.is_available()
    shapes, skipped = choose(torch.cuda.mem_get_info()[0]) if cuda else (tiny(), ["all of CUDA: there is no GPU"])
    device, dtype = ("cuda:0", "bfloat16") if cuda else ("cpu", "float32")
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if cuda else "cpu", "torch": torch.__version__, "skipped": skipped,
        "shapes": {role: config.to_diff_dict() for role, config in shapes}, "step_ms": {}, "ladder": {}}
    out.mkdir(parents=True, exist_ok=True)
    for role, config in shapes:
        config.save_pretrained(out / role)

    def call(name: str, commands: list[list[str]]) -> str | None:
        """Why there is no result; None if there is one."""
        for command in commands:
            left = end - time.monotonic()
            if left <= 0:
                return f"{name}: no time left"
            try:
                code = subprocess.run(command, cwd=ROOT, timeout=left).returncode
            except subprocess.TimeoutExpired:
                return f"{name}: no time left"
            if code:
                return f"{name}: exit code {code}"
        return None

    failed = call("equality", equality(out.absolute(), device))
    report["equality"] = failed or "every token is the reference's"
    for role, _ in shapes:
        for graphs in ("auto", "off") if cuda else ("off",):
            if time.monotonic() > end:
                skipped.append(f"step times of {role}, graphs {graphs}: no time left")
                continue
            report["step_ms"][f"{role}, graphs {graphs}"] = step_times(out / role, device, dtype, graphs)
            gc.collect()
            if cuda:
                torch.cuda.empty_cache()
            _write(out, report)
    for name, command in ladder(out.absolute(), out.absolute(), cuda):
        reason = call(name, [command])
        if reason:
            skipped.append(reason)
        else:
            report["ladder"][name] = measured(out / name)
        _write(out, report)
    return report


def _write(out: Path, report: dict[str, Any]) -> None:
    (out / "check.json").write_text(json.dumps(report, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=450.0)
    options = parser.parse_args()
    report = check(options.out, options.seconds)
    print(json.dumps(report, indent=2))
    return 0 if report["equality"].startswith("every") else 1


if __name__ == "__main__":
    raise SystemExit(main())
