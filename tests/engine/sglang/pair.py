"""A model over two processes, in a process of its own, as SGLang keeps one engine a process.

`python -m tests.engine.sglang.pair SERVER_ARGS` answers one line of JSON, and then appends each token that it reads.
"""
from __future__ import annotations

import json
import sys
from typing import Any

import torch

from tests.engine.drive import append, decode, decode_ragged, make_prompts
from tokenrouter.engine.base import Row
from tokenrouter.engine.sglang.engine import SglangEngine
from zoo.models import path

COUNT, CAPACITY = 12, 128
PROMPTS = make_prompts((11, 3, 17))
LONG = make_prompts((100,))[0]


def answers(engine: SglangEngine) -> dict[str, Any]:
    """What the Engine protocol gives: for comparison with transformers, or with itself."""
    made: dict[str, Any] = {"tokens": decode_ragged(engine, PROMPTS, COUNT)}
    engine.check(["r0", "r1", "r2"])
    for n in range(3):
        engine.free(f"r{n}", PROMPTS[n])
    ids = PROMPTS[2]
    made["hits"] = engine.open("a", ids)
    engine.truncate("a", 4)
    engine.open("b", ids)
    assert engine.allocate("a", len(ids) - 4)
    several = engine.step([Row("a", ids[4:], 3)])
    made |= {"logits": several.logits.tolist(), "hidden": several.hidden.tolist()}
    made["again"] = decode(engine, "b", ids, COUNT)
    made["embedded"] = engine.embed(torch.tensor(ids)).tolist()
    engine.check(["a", "b"])
    engine.free("a")
    engine.free("b")
    engine.open("c", LONG)  # evicts what the others left
    append(engine, "c", LONG)
    engine.check(["c"])
    engine.free("c")
    engine.check([])
    engine.flush_cache()
    made["free"] = engine.capacity().free
    made["info"] = [engine.info.num_params, engine.info.weight_bytes, engine.info.bytes_per_token]
    return made


def main() -> None:
    torch.set_num_threads(1)
    engine = SglangEngine(str(path("large")), capacity_tokens=CAPACITY, max_sequences=4, tp_size=2,
                          server_args=json.loads(sys.argv[1]))
    made = answers(engine) | {"followers": engine._runtime.followers.pids}
    print(json.dumps(made), flush=True)
    engine.open("d", LONG)
    for line in sys.stdin:
        append(engine, "d", [int(line)])


if __name__ == "__main__":
    main()
