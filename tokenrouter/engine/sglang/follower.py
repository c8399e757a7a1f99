"""One of the other ranks of a model: `python -m tokenrouter.engine.sglang.follower SPEC`, the spec as JSON.

Rank 0 starts those of its own machine. On further machines each is started by hand, with the options of rank 0:
docs/engines.md has an example.
"""
from __future__ import annotations

import gc
import os
import sys
from typing import Any

import msgspec
import torch

from tokenrouter.core import InputError
from tokenrouter.engine.sglang import calls as c
from tokenrouter.engine.sglang.runtime import Append, Options, Runtime, Shard
from tokenrouter.subserver.process import die_with_parent


class FollowerSpec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`parent`: the process that starts it, without which it ends; None: started by hand. `threads`: torch's."""

    options: Options
    shard: Shard
    parent: int | None = None
    threads: int = 1


class Follower:
    """Repeats rank 0's calls on a Runtime of its own, so that its pools hold the same tokens."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reqs: dict[str, Any] = {}

    @torch.inference_mode()
    def repeat(self, call: c.Call) -> None:
        """RuntimeError or AssertionError if this rank's pools turn out to be others than rank 0's."""
        runtime, reqs = self._runtime, self._reqs
        match call:
            case c.Begin(options):
                _compare(runtime.options, options)
            case c.Open(rid):
                reqs[rid] = runtime.open(rid)
            case c.Adopt(rid, ids):
                if (length := runtime.adopt(reqs[rid], ids)) != len(ids):
                    raise RuntimeError(f"{rid}: rank 0's prefix cache has {len(ids)} tokens, this rank's {length}")
            case c.Forward(appends):
                runtime.forward([Append(reqs[rid], ids, num_logits) for rid, ids, num_logits in appends])
            case c.Truncate(rid, length):
                runtime.truncate(reqs[rid], length)
            case c.Release(rid, committed):
                runtime.release(reqs.pop(rid), committed)
            case c.Embed(shape):
                runtime.embed(torch.zeros(shape, dtype=torch.long, device=runtime.device))
            case c.Flush():
                runtime.flush()
            case c.Check(rids):
                assert sorted(rids) == sorted(reqs), f"rank 0 has the sequences {sorted(rids)}, this one {sorted(reqs)}"
                runtime.check(reqs.values())


def _compare(mine: Options, leaders: Options) -> None:
    for name in Options.__struct_fields__:
        here, there = getattr(mine, name), getattr(leaders, name)
        if name not in ("path", "device") and here != there:  # each machine has its own
            raise InputError(f"options.{name}={here!r}: allowed is what rank 0 has, {there!r}")


def main(text: str) -> None:
    spec = msgspec.json.decode(text, type=FollowerSpec)
    if spec.parent is not None:
        die_with_parent(spec.parent, only=True)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))  # rank 0 may have a core of its own
    torch.set_num_threads(spec.threads)
    follower = Follower(Runtime(spec.options, spec.shard))
    channel = c.Channel()
    gc.collect()
    gc.freeze()  # as rank 0's process does: a collection here would be one for all
    while True:
        for call in channel.receive():
            follower.repeat(call)


if __name__ == "__main__":
    main(sys.argv[1])
