from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.config import LoadConfig
from bench.load import LoadGenerator, arrivals
from bench.plan import request_seed
from bench.records import Progress
from tests.bench.fake import FakeService, job


def loop(service: FakeService, concurrency: int = 3, stall_s: float = 60.0, **more: object) -> LoadGenerator:
    return LoadGenerator(service, "r2r", concurrency, stall_s, **more)  # type: ignore[arg-type]


def test_closed_loop_keeps_its_clients_busy_and_sends_in_order() -> None:
    service = FakeService()
    trace = loop(service).run("measuring", [job(i) for i in range(8)])
    assert [sampling.seed for _, sampling in service.sent] == list(range(8))
    assert service.most_open == 3
    assert [r.token_ids for r in trace.records] == [[5, 6, 7, 8]] * 8
    assert [r.roles for r in trace.records] == [[0, 0, 1, 1]] * 8
    assert all(r.completed and r.handoffs == 2 and r.discarded == 1 for r in trace.records)
    assert trace.stopped is None and trace.began <= trace.records[0].start <= trace.ended


def config(**changes: object) -> LoadConfig:
    given = {"mode": "closed", "via": "inproc", "concurrency": 2, "num_requests": 400, "warmup": 0, "seed": 3,
             "stall_s": 1.0}
    return LoadConfig(**given | changes)  # type: ignore[arg-type]


def test_poisson_arrivals_have_their_rate_and_their_seed() -> None:
    at = arrivals(config(mode="poisson", request_rate=8.0))
    assert at is not None and at[0] == 0 and at == sorted(at) and len(at) == 400
    gaps = np.diff(at)
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.15) and gaps.std() == pytest.approx(1 / 8, rel=0.2)
    assert at == arrivals(config(mode="poisson", request_rate=8.0))
    assert at != arrivals(config(mode="poisson", request_rate=8.0, seed=4))
    assert arrivals(config(mode="batch")) == [0.0] * 400 and arrivals(config()) is None


def test_all_at_once_is_sent_before_anything_is_heard() -> None:
    service = FakeService()
    trace = loop(service, concurrency=2).run("measuring", [job(i) for i in range(7)], [0.0] * 7)
    assert service.most_open == 7 and all(record.completed for record in trace.records)


def test_requests_are_sent_when_they_are_due_whatever_is_under_way() -> None:
    """Also where nothing is, and later than a silence that would be a failure."""
    at = [0.0, 0.0, 0.05, 0.3]
    trace = loop(FakeService(), concurrency=1, stall_s=0.1).run("measuring", [job(i) for i in range(4)], at)
    assert trace.stopped is None and all(record.completed for record in trace.records)
    late = [record.start - trace.began - due for record, due in zip(trace.records, at, strict=True)]
    assert all(0 <= one < 0.04 for one in late)


def test_fewer_requests_than_clients_end_too() -> None:
    assert len(loop(FakeService(), concurrency=9).run("measuring", [job(0), job(1)]).records) == 2


@pytest.mark.parametrize("stopped", [KeyboardInterrupt(), RuntimeError("subserver 1 (large) died")])
def test_what_was_done_is_kept_when_the_run_is_stopped(stopped: BaseException) -> None:
    service = FakeService(fails_at=stopped, fail_poll=6)
    trace = loop(service, concurrency=2).run("measuring", [job(i) for i in range(20)])
    assert trace.stopped is stopped
    assert [r.completed for r in trace.records] == [True, True, False, False]
    assert set(service.aborted) == {"r2", "r3"} and not service.open


def test_a_system_that_falls_silent_is_a_failure() -> None:
    trace = loop(FakeService(silent_from=3), stall_s=0.01).run("measuring", [job(i) for i in range(4)])
    assert "load.stall_s=0.01" in str(trace.stopped)


def test_a_count_that_does_not_match_the_stream_fails_the_request() -> None:
    service = FakeService()
    poll = service.poll
    service.poll = lambda timeout_s: [e for e in poll(timeout_s) if getattr(e, "position", 0) != 3]  # type: ignore
    trace = loop(service).run("measuring", [job(0)])
    assert not trace.records[0].completed and trace.records[0].error == "3 tokens arrived, 4 were counted"


def test_tokens_out_of_place_stop_the_run() -> None:
    service = FakeService()
    poll = service.poll
    service.poll = lambda timeout_s: [e for e in poll(timeout_s) if getattr(e, "position", 0) != 1]  # type: ignore
    assert "position 2, expected 1" in str(loop(service).run("measuring", [job(0)]).stopped)


def test_tokens_that_come_together_are_one_chunk() -> None:
    service = FakeService()
    poll = service.poll
    service.poll = lambda timeout_s: [replace(e, time=1e9) for e in poll(timeout_s)]  # type: ignore
    record = loop(service).run("measuring", [job(0)]).records[0]
    assert record.chunks == [(1e9, 4)] and record.roles == [0, 0, 1, 1]


def test_what_a_service_computes_for_the_client_counts_as_the_clients() -> None:
    service = FakeService()
    service.client_cpu_s = lambda: 1000.0 * service.polls  # type: ignore[attr-defined]
    assert loop(service).run("measuring", [job(0)]).client_busy > 1


def test_progress_ends_at_the_end() -> None:
    seen: list[Progress] = []
    loop(FakeService(), watch=seen.append).run("measuring", [job(i) for i in range(5)])
    assert (seen[-1].done, seen[-1].total, seen[-1].active, seen[-1].tokens) == (5, 5, 0, 20)


def test_request_seeds_depend_on_both_keys_alone() -> None:
    seeds = {request_seed(s, i) for s in range(20) for i in range(20)}
    assert len(seeds) == 400 and all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(3, 4) == request_seed(3, 4)
