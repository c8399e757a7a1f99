"""One subserver's process: `python -m tokenrouter.subserver SPEC.json`, started by tokenrouter.cluster."""
from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tokenrouter.cluster.spec import SubserverSpec
from tokenrouter.core import InputError
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.idle import own_core
from tokenrouter.subserver.link import Link
from tokenrouter.subserver.mailbox import Mailbox
from tokenrouter.subserver.process import die_with_parent


def main(path: str) -> int:
    spec = msgspec.json.decode(Path(path).read_bytes(), type=SubserverSpec)
    die_with_parent(spec.parent, only=True)
    if spec.core is not None:
        os.sched_setaffinity(0, {spec.core})
    mailbox = Mailbox(spec.index, spec.epoch, spec.addresses[spec.index],
                      {i: a for i, a in spec.addresses.items() if i != spec.index}, spec.keys,
                      Link(link) if (link := spec.cluster.hardware.link) else None)
    try:
        _serve(spec, mailbox)
    except Exception as error:
        traceback.print_exc()
        mailbox.post(m.FRONT_END, m.Failed(f"{type(error).__name__}: {error}", isinstance(error, InputError)))
        return 1
    finally:
        mailbox.flush()
        mailbox.close()
    return 0


def _serve(spec: SubserverSpec, mailbox: Mailbox) -> None:
    import torch  # heavy: the socket is bound by now, so nothing sent meanwhile is lost

    torch.set_num_threads(spec.cluster.hardware.threads)
    from tokenrouter.engine import load_engine
    from tokenrouter.engine.routers import set_up
    from tokenrouter.subserver.lifecycle import Lifecycle
    from tokenrouter.subserver.loop import Subserver
    from tokenrouter.subserver.planner import PlannerProcess
    from tokenrouter.subserver.policies import make_policy
    from tokenrouter.subserver.routing import Routing
    from tokenrouter.subserver.scheduler import Scheduler
    from tokenrouter.subserver.stats import Stats

    model, engine_spec, batching = spec.cluster.models[spec.index], spec.cluster.engine, spec.cluster.batching
    policy = make_policy(batching, spec.index, lambda: PlannerProcess(batching.policy))
    engine = load_engine(engine_spec.kind, path=model.path, revision=model.revision, device=model.device,
                         dtype=model.dtype, load_format=model.load_format, capacity_tokens=spec.capacity_tokens,
                         **engine_spec.options_of(model.name))
    info = engine.info
    algorithms = [a.build() for a in spec.cluster.algorithms]
    models = [a.models for a in spec.cluster.algorithms]
    routers = {}
    for i, algorithm in enumerate(algorithms):
        if spec.index in models[i]:
            routers[i] = algorithm.router(algorithm.roles[models[i].index(spec.index)])
            set_up(routers[i], engine)

    mailbox.post(m.FRONT_END, m.Ready(msgspec.to_builtins(info), engine.capacity().total))
    mailbox.flush()

    def alive() -> bool:
        return os.getppid() == spec.parent

    start = _await_start(mailbox, alive)
    if start is None:
        return

    scheduler = Scheduler(engine, policy, max_batch=engine_spec.max_batch, chunk_tokens=engine_spec.chunk_tokens)
    stats = Stats()

    def control(command: str) -> dict[str, Any]:
        subserver.catch_up()
        if command == "stats":
            return stats.report() | {
                "role": {algorithms[i].name: router.role for i, router in routers.items()},
                "active": len(lifecycle.active), "ready": len(scheduler.ready),
                "pending": len(scheduler.requests) - len(scheduler.ready),
                "kv_total_tokens": engine.capacity().total,
                "kv_used_tokens": engine.capacity().total - engine.capacity().free,
                "threshold_B": policy.threshold(lifecycle.counts),
                **({} if policy.log is None else {"launches": msgspec.to_builtins(policy.log)}),
                **msgspec.to_builtins(scheduler.counters), "engine": msgspec.to_builtins(engine.counters),
            }
        if command == "glance":
            return stats.recent() | {"threshold_B": policy.threshold(lifecycle.counts)}
        if command == "take_stats":
            report = control("stats")
            control("reset_stats")
            return report
        if command == "reset_stats":
            stats.__init__()  # type: ignore[misc]
        elif command == "flush_cache":
            engine.flush_cache()
        elif command == "check":
            engine.check([r.rid for r in scheduler.requests.values() if r.resident])
            return {"active": sorted(lifecycle.active), "requests": sorted(scheduler.requests)}
        return {}

    lifecycle = Lifecycle(spec.index, mailbox, scheduler, algorithms, models, routers, control)
    routing = Routing(algorithms, routers, lifecycle, eos_token_ids=frozenset(start.eos_token_ids),
                      vocab_size=start.vocab_size)
    # A process of real-time priority, as of emulated models, would keep the core from all others.
    awake = engine_spec.kind != "emulated" and own_core(spec.cluster.hardware.pin, spec.index, len(spec.cluster.models))
    subserver = Subserver(engine, mailbox, scheduler, lifecycle, routing, stats, alive, awake=awake)
    gc.collect()
    gc.freeze()  # the model's objects are never garbage: collections should not walk them
    subserver.run()


def _await_start(mailbox: Mailbox, alive: Callable[[], bool]) -> m.Start | None:
    """None if told to stop, or left alone, before all others were ready.

    A peer that has been told earlier may already have sent something: that is kept for the loop.
    """
    start, early = None, []
    while start is None and alive():
        for sender, message in mailbox.receive(0.1):
            if isinstance(message, m.Start):
                start = message
            elif isinstance(message, m.Control) and message.command == "stop":
                return None
            else:
                early.append((sender, message))
    mailbox.unread(early)
    return start


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
