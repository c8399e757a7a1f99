"""Requests through a running cluster, as records that zoo/reference.py can judge."""
from __future__ import annotations

from collections.abc import Sequence

from tokenrouter.core import SamplingParams
from tokenrouter.server.frontend import EndEvent, Frontend, TokenEvent
from zoo.walk import Record

Job = tuple[str, list[int], SamplingParams]  # algorithm, prompt, how to sample


def serve(frontend: Frontend, jobs: Sequence[Job], concurrency: int) -> list[Record]:
    """All jobs, in their order, `concurrency` at a time."""
    records = [Record(prompt, sampling) for _, prompt, sampling in jobs]
    waiting, running = list(enumerate(jobs))[::-1], {}
    while waiting or running:
        while waiting and len(running) < concurrency:
            index, (name, prompt, sampling) = waiting.pop()
            running[frontend.submit(prompt, sampling, name)] = records[index]
        for event in frontend.poll(1.0):
            record = running[event.rid]
            if isinstance(event, TokenEvent):
                record.token_ids = record.token_ids + event.token_ids
                record.token_models = record.token_models + [event.role] * len(event.token_ids)
            elif isinstance(event, EndEvent):
                del running[event.rid]
                record.finish_reason, record.handoffs, record.discarded = event.reason, event.handoffs, event.discarded
    return records
