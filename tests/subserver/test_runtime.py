"""The runtime against the one-request reference, under every schedule that chance brings about."""
from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy import ToyCluster, ToyEngine, toy_algorithm, toy_reference, toy_token
from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec
from tokenrouter.core import FinishReason, Request, SamplingParams
from tokenrouter.interface import BaseRouter, RequestView, StepResult
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.scheduler import SHORT_APPEND, Scheduler


def prompts(rng: random.Random, count: int) -> list[tuple[list[int], int]]:
    return [([rng.randrange(1, 64) for _ in range(rng.randint(1, 20))], rng.randint(1, 40)) for _ in range(count)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), roles=st.integers(1, 3), count=st.integers(1, 12),
       pages=st.sampled_from([16, 24, 500]), B=st.lists(st.integers(1, 4), min_size=3, max_size=3),
       max_batch=st.sampled_from([1, 3, 64]))
def test_every_schedule_gives_the_reference(seed: int, roles: int, count: int, pages: int, B: list[int],
                                            max_batch: int):
    """Tokens, authors and reason of each request; small pools force eviction and preemption; nothing is left."""
    algorithm = toy_algorithm(roles, entry=seed % roles)
    batching = BatchingSpec(policy="fixed", B=B[:roles], max_wait_s=1e9)  # no time-out may be needed
    cluster = ToyCluster([algorithm], models=roles, pages=pages, seed=seed, batching=batching, max_batch=max_batch)
    jobs = prompts(random.Random(seed), count)
    rids = []
    for prompt, max_tokens in jobs:
        rids.append(cluster.submit(prompt, max_tokens))
        for _ in range(cluster.rng.randrange(30)):
            cluster.turn()
    cluster.run()
    for rid, (prompt, max_tokens) in zip(rids, jobs, strict=True):
        assert cluster.output(rid) == toy_reference(algorithm, prompt, max_tokens)
    cluster.check_idle()
    assert all(s.scheduler.counters.timeouts == 0 for s in cluster.subservers)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), roles=st.integers(2, 3))
def test_aborts_at_any_moment_leave_nothing_behind(seed: int, roles: int):
    algorithm = toy_algorithm(roles)
    cluster = ToyCluster([algorithm], models=roles, pages=24, seed=seed,
                         batching=BatchingSpec(policy="fixed", B=[2] * roles, max_wait_s=1e9))
    jobs = prompts(cluster.rng, 10)
    rids = [cluster.submit(prompt, max_tokens) for prompt, max_tokens in jobs]
    aborted = set(cluster.rng.sample(rids, 5))
    for rid in aborted:
        for _ in range(cluster.rng.randrange(60)):
            cluster.turn()
        cluster.frontend.abort(rid)
    cluster.run()
    for rid, (prompt, max_tokens) in zip(rids, jobs, strict=True):
        tokens, roles_of, reason = cluster.output(rid)
        expected = toy_reference(algorithm, prompt, max_tokens)
        if reason == "abort":
            assert rid in aborted and tokens == expected[0][: len(tokens)] and roles_of == expected[1][: len(tokens)]
        else:
            assert (tokens, roles_of, reason) == expected
    cluster.check_idle()


def test_eviction_and_preemption_happen_and_are_counted():
    algorithm = toy_algorithm(2)
    cluster = ToyCluster([algorithm], models=2, pages=16, seed=3)
    jobs = prompts(random.Random(5), 12)
    rids = [cluster.submit(prompt, max_tokens) for prompt, max_tokens in jobs]
    cluster.run()
    assert [cluster.output(r) for r in rids] == [toy_reference(algorithm, *job) for job in jobs]
    counters = [s.scheduler.counters for s in cluster.subservers]
    assert sum(c.evictions for c in counters) > 0 and sum(c.preemptions for c in counters) > 0


def test_a_later_prompt_does_not_take_what_an_earlier_one_waits_for():
    engine = ToyEngine(0, pages=16)  # 64 tokens
    scheduler = Scheduler(engine, None, max_batch=8, chunk_tokens=32)  # type: ignore[arg-type]

    def add(rid: str, first: int, length: int) -> Request:
        ids = list(range(first, first + length))
        request = Request(rid, 0, 0, 0, SamplingParams(0, 8), {}, ids=ids, prompt_len=length, known=[length])
        scheduler.add(request, 0.0)
        return request

    def step() -> list[str]:
        batch = scheduler.assemble()
        engine.step([row for _, row in batch])
        for request, row in batch:
            request.kv_len += len(row.token_ids)
        return [request.rid for request, _ in batch]

    first = add("first", 0, 40)
    assert step() == step() == ["first"]
    add("second", 100, 40)
    add("third", 200, 20)  # would fit
    first.ids.append(7)
    assert step() == ["first"] and scheduler.counters.preemptions == 0
    scheduler.remove(first)
    assert step() == ["second"]


def test_a_resume_is_an_append():
    """One prefix lookup and the pages of the final length, for each model, however often a request came back."""
    algorithm = toy_algorithm(2)
    cluster = ToyCluster([algorithm], models=2, pages=500, seed=1)
    prompt = [5, 7, 9, 11, 13]
    rid = cluster.submit(prompt, 40)
    cluster.run()
    tokens, roles, _ = cluster.output(rid)
    handoffs = sum(isinstance(message, m.Handoff) for _, _, message in cluster.wire.sent)
    assert handoffs >= 6, "the case must have many returns to say anything"
    for model, subserver in enumerate(cluster.subservers):
        last = max(i for i, role in enumerate(roles) if role == model)
        held = len(prompt) + last  # the KV under this model's last own token (its proposals later are discarded)
        counters = subserver.engine.counters
        assert counters.prefix_lookups == 1
        assert -(-held // 4) <= counters.pages_allocated <= -(-(len(prompt) + len(tokens)) // 4)


def test_handoffs_carry_the_unseen_suffix_and_the_prompt_once():
    algorithm = toy_algorithm(3)
    cluster = ToyCluster([algorithm], models=3, pages=500, seed=2)
    prompt = list(range(1, 30))
    cluster.submit(prompt, 40)
    cluster.run()
    held = {0: len(prompt), 1: 0, 2: 0}
    for sender, receiver, message in cluster.wire.sent:
        if isinstance(message, m.Handoff):
            assert message.loc - len(message.token_ids) <= held[receiver]
            assert (message.opening is not None) == (held[receiver] == 0)
            held[receiver] = held[sender] = message.loc
    assert held[1] > 0 and held[2] > 0


def test_duplicates_and_strays_are_dropped():
    algorithm = toy_algorithm(2)
    cluster = ToyCluster([algorithm], models=2, pages=500, seed=4)
    jobs = prompts(random.Random(6), 6)
    rids = [cluster.submit(prompt, max_tokens) for prompt, max_tokens in jobs]
    wire = cluster.wire
    for _ in range(200_000):
        if not cluster.frontend.num_open:
            break
        for queue in wire.queues.values():  # everything is said twice
            if len(queue) == 1:
                queue.append(queue[0])
        cluster.turn()
    assert [cluster.output(r) for r in rids] == [toy_reference(algorithm, *job) for job in jobs]


def test_a_gap_is_asked_for_again():
    """A first handoff without the prompt and the opening, as if an earlier message had been lost."""
    algorithm = toy_algorithm(2)
    cluster = ToyCluster([algorithm], models=2, pages=500, seed=7)
    rid = cluster.submit([3, 4, 5], 40)
    queue = cluster.wire.queues[0, 1]
    while not any(isinstance(message, m.Handoff) for _, _, message in cluster.wire.sent):
        cluster.turn()
    envelope = msgspec.msgpack.decode(queue.pop(), type=m.Envelope)
    handoff = next(message for message in envelope.messages if isinstance(message, m.Handoff))
    handoff.token_ids, handoff.authors, handoff.opening = handoff.token_ids[-1:], handoff.authors[-1:], None
    queue.append(msgspec.msgpack.encode(envelope))
    cluster.run()
    assert any(isinstance(message, m.Resend) for _, _, message in cluster.wire.sent)
    assert cluster.output(rid) == toy_reference(algorithm, [3, 4, 5], 40)


def test_a_request_that_comes_back_with_nothing_new_goes_on():
    algorithm = AlgorithmSpec(name="toy", roles=["m0", "m1"], entry="m0", models=[0, 1], routers={
        "m0": {"_target_": "tests.toy.LeaveOnce"}, "m1": {"_target_": "tests.toy.LeaveAlways"}})
    cluster = ToyCluster([algorithm], models=2, pages=500, seed=3)
    rid, prompt = cluster.submit([3, 4, 5, 6], 12), [3, 4, 5, 6]
    cluster.run()
    tokens, roles, _ = cluster.output(rid)
    assert set(roles) == {0} and tokens == [toy_token(0, prompt + tokens[:i]) for i in range(len(tokens))]
    cluster.check_idle()


def test_two_algorithms_share_the_subservers():
    first, second = toy_algorithm(2), toy_algorithm(2, entry=1, name="other")
    cluster = ToyCluster([first, second], models=2, pages=40, seed=8)
    jobs = prompts(random.Random(9), 10)
    rids = [cluster.submit(p, n, ("toy", "other")[i % 2]) for i, (p, n) in enumerate(jobs)]
    cluster.run()
    for i, (rid, job) in enumerate(zip(rids, jobs, strict=True)):
        assert cluster.output(rid) == toy_reference((first, second)[i % 2], *job)
    cluster.check_idle()


def test_abort_of_what_is_over_is_nothing():
    cluster = ToyCluster([toy_algorithm(1)], models=1, pages=50, seed=0)
    rid = cluster.submit([1, 2], 5)
    cluster.run()
    cluster.frontend.abort(rid, FinishReason.ABORT)
    cluster.run()
    assert cluster.output(rid)[2] in ("stop", "length")


class Wrong(BaseRouter):
    """Answers one thing or the other that is no answer."""

    answer: str
    peers = 1

    def route(self, result: StepResult) -> Any:
        count = len(result.requests)
        return {"list": [0] * count, "none": None, "column": torch.zeros(count, 1, dtype=torch.long),
                "half": torch.full((count,), 0.5), "seven": torch.full((count,), 7)}.get(
                    self.answer, torch.ones(count, dtype=torch.long))

    def send(self, req: RequestView) -> Any:
        return None


@pytest.mark.parametrize(("answer", "message"), [
    ("list", r"Wrong\.route answered \[0\]: allowed is a tensor of 1 whole numbers, one for each request"),
    ("none", r"Wrong\.route answered None: allowed is a tensor of 1 "),
    ("column", r"Wrong\.route answered a torch.int64 tensor of shape \[1, 1\]: allowed is "),
    ("half", r"Wrong\.route answered a torch.float32 tensor of shape \[1\]: allowed is "),
    ("seven", r"Wrong\.route answered 7: allowed is 0 to 1"),
    ("send", r"Wrong\.send answered None: allowed is a PeerReq"),
])
def test_an_answer_that_is_none_is_told_with_the_router_and_its_method(answer: str, message: str):
    wrong = {"_target_": "tests.subserver.test_runtime.Wrong", "answer": answer}
    algorithm = AlgorithmSpec(name="toy", roles=["m0", "m1"], entry="m0", models=[0, 1], routers={
        "m0": wrong, "m1": {"_target_": "tests.toy.LeaveAlways"}})
    cluster = ToyCluster([algorithm], models=2, pages=50, seed=0)
    cluster.submit([1, 2, 3], 5)
    with pytest.raises(ValueError, match=message):
        cluster.run()


@pytest.mark.parametrize("limits", [{"chunk_tokens": 17}, {"max_batch": 1}])
def test_limits_of_a_step_are_kept(limits: dict[str, int]):
    cluster = ToyCluster([toy_algorithm(1)], models=1, pages=500, seed=0, **limits)
    rids = [cluster.submit(list(range(1, 60)), 3) for _ in range(3)]
    cluster.run()
    stats = cluster.subservers[0].stats
    assert max(stats.batch_size) <= limits.get("max_batch", 3)
    assert max(stats.tokens) <= limits.get("chunk_tokens", 60) + 2 * SHORT_APPEND
    assert all(cluster.output(rid)[2] for rid in rids)
