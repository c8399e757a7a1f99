"""However it is executed, an algorithm comes to the tokens of the one-request reference, each by the same model."""
from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from baselines.calls import Calls
from baselines.course import Course, Ended, Event, Tokens
from baselines.host import PARTS, Ask, Host, Reply
from baselines.remote import _Server, _Step, make_host
from baselines.service import OfficialService, _Outbox, make_executor, serve
from baselines.styles import IMPROVED, OFFICIAL, STD, STD_PLUS, Style, style_of
from tests.baselines.conftest import EOS, VOCAB, MakeSpec
from tests.serve import serve as send
from tokenrouter.cluster.spec import AlgorithmSpec
from tokenrouter.core import FinishReason, InputError, SamplingParams
from tokenrouter.engine.base import EngineOutput, Row
from zoo.reference import compare
from zoo.walk import Record

Truth = Callable[[AlgorithmSpec], list[Record]]
ONE_PROCESS = {
    f"{name}-{kind}": msgspec.structs.replace(style, hosts="together")
    for kind, table in (("official", OFFICIAL), ("improved", IMPROVED)) for name, style in table.items()
}  # fmt: skip


def equal(records: Sequence[Record], true: Sequence[Record]) -> bool:
    return all(compare(*both).kind == "equal" for both in zip(records, true, strict=True))


class Watched:
    """A host that notes what it was asked."""

    def __init__(self, host: Host) -> None:
        self._host, self.asked, self.appended = host, [], 0
        self.capacity = host.capacity

    def step(self, asks: Sequence[Ask]) -> Reply:
        self.asked.append(list(asks))
        reply = self._host.step(asks)
        self.computed = getattr(self, "computed", 0) + reply.tokens
        return reply

    def append(self, asks: Sequence[Ask]) -> None:
        self.appended += len(asks)
        self._host.append(asks)

    def end(self, rids: Sequence[str]) -> None:
        self._host.end(rids)


class Execution:
    """An executor in this process, and what its clients heard."""

    def __init__(self, make_spec: MakeSpec, algorithm: AlgorithmSpec, style: Style, clients: int = 4) -> None:
        spec = make_spec(algorithm)
        self.hosts = [Watched(make_host(spec, role, style)) for role in range(len(spec.models))]
        self.built = algorithm.build()
        self.routers = [self.built.router(role) for role in self.built.roles]
        self.stats = [Calls() for _ in self.routers]
        self.events: list[Event] = []
        self.executor: Any = make_executor(self.hosts, style, self.stats, self.events.extend, 16, clients)  # type: ignore[arg-type]

    def submit(self, rid: str, record: Record) -> None:
        self.executor.submit(Course(rid, record.prompt_ids, record.sampling, {}, self.built, self.routers, self.stats,
                                    eos={EOS}, context=512))

    def run(self, records: Sequence[Record]) -> list[Record]:
        """All at once."""
        for number, record in enumerate(records):
            self.submit(f"r{number}", record)
        while self.executor.turn() is not None:
            pass
        return [self.record(f"r{number}", record) for number, record in enumerate(records)]

    def record(self, rid: str, asked: Record) -> Record:
        made = Record(asked.prompt_ids, asked.sampling)
        for event in self.events:
            if event.rid == rid and isinstance(event, Tokens):
                assert event.position == len(made.token_ids) and made.finish_reason is None
                made.token_ids = made.token_ids + event.token_ids
                made.token_models = made.token_models + [event.role] * len(event.token_ids)
            elif event.rid == rid and isinstance(event, Ended):
                assert made.finish_reason is None
                made.finish_reason, made.handoffs, made.discarded = event.reason, event.handoffs, event.discarded
        return made


@pytest.mark.parametrize("name", ONE_PROCESS)
def test_every_style_tells_the_truth(
    name: str, make_spec: MakeSpec, pair: AlgorithmSpec, ring: AlgorithmSpec, prompts: list[Record], truth: Truth
) -> None:
    algorithm = ring if name.startswith("me") else pair
    execution = Execution(make_spec, algorithm, ONE_PROCESS[name])
    assert equal(execution.run(prompts), truth(algorithm))
    for host in execution.hosts:
        host._host._engine.check([])  # nothing of any request is left


@pytest.mark.parametrize("name", ["r2r-official", "r2r-improved", "citer-official"])
def test_what_rides_with_handoffs_reaches_the_routers(
    name: str, make_spec: MakeSpec, replayed: AlgorithmSpec, prompts: list[Record], truth: Truth
) -> None:
    records = Execution(make_spec, replayed, ONE_PROCESS[name]).run(prompts)
    true = truth(replayed)
    assert equal(records, true) and any(record.discarded for record in true)
    assert [record.token_models for record in records] == [record.token_models for record in true]


def test_a_static_batch_is_joined_by_nobody_and_ends_as_one(
    make_spec: MakeSpec, pair: AlgorithmSpec, prompts: list[Record]
) -> None:
    execution = Execution(make_spec, pair, ONE_PROCESS["r2r-official"], clients=4)
    execution.run(prompts)
    batches = [{ask.rid for ask in asks} for asks in execution.hosts[0].asked]
    assert max(map(len, batches)) == 4
    for first in range(0, len(prompts), 4):
        members = {f"r{i}" for i in range(first, min(first + 4, len(prompts)))}
        touched = [batch for batch in batches if batch & members]
        assert touched[0] == members and all(batch <= members for batch in touched)
        ends = [i for i, event in enumerate(execution.events) if isinstance(event, Ended) and event.rid in members]
        assert ends == list(range(ends[0], ends[0] + len(members)))


def test_continuous_batches_are_joined(make_spec: MakeSpec, pair: AlgorithmSpec, prompts: list[Record]) -> None:
    execution = Execution(make_spec, pair, ONE_PROCESS["r2r-improved"], clients=4)
    execution.run(prompts)
    assert {len(execution.hosts[0].asked[0])} == {len(prompts)}  # as many as there is room for
    first = next(event for event in execution.events if isinstance(event, Ended))
    assert execution.events.index(first) < len(execution.events) - len(prompts)


def test_one_request_at_a_time(make_spec: MakeSpec, ring: AlgorithmSpec, prompts: list[Record]) -> None:
    execution = Execution(make_spec, ring, ONE_PROCESS["me-official"])
    records = execution.run(prompts)
    order = [event.rid for event in execution.events]
    assert order == sorted(order, key=lambda rid: int(rid[1:]))
    written = sum(len(record.token_ids) for record in records)
    assert sum(host.appended for host in execution.hosts) == 2 * written  # each token to both of the others
    assert sum(host.appended for host in _run(make_spec, ring, "me-improved", prompts).hosts) == 0


def _run(make_spec: MakeSpec, algorithm: AlgorithmSpec, style: str, prompts: list[Record]) -> Execution:
    execution = Execution(make_spec, algorithm, ONE_PROCESS[style])
    execution.run(prompts)
    return execution


def test_what_is_not_kept_is_computed_again(make_spec: MakeSpec, pair: AlgorithmSpec, prompts: list[Record]) -> None:
    runs = {style: _run(make_spec, pair, style, prompts) for style in (
        "r2r-official", "citer-official", "citer-improved", "collm-official")}
    small, large = ({style: run.hosts[role].computed for style, run in runs.items()} for role in (0, 1))
    assert small["r2r-official"] == small["citer-official"] == small["citer-improved"]
    assert large["r2r-official"] == large["citer-improved"] < large["citer-official"] == large["collm-official"]
    assert small["r2r-official"] < small["collm-official"]
    for asks in runs["citer-official"].hosts[1].asked:
        assert all(ask.start == 0 for ask in asks)


def test_full_log_probabilities_travel_where_the_style_has_them(
    make_spec: MakeSpec, pair: AlgorithmSpec, prompts: list[Record]
) -> None:
    spec = make_spec(pair)
    greedy = next(record for record in prompts if record.sampling.temperature == 0)
    ask = Ask("r", 0, greedy.prompt_ids, [], len(greedy.prompt_ids), greedy.sampling, {})
    (answer,) = make_host(spec, 0, OFFICIAL["collm"]).step([ask]).answers
    assert answer.logprobs is not None and len(answer.logprobs) == VOCAB
    assert max(range(VOCAB), key=answer.logprobs.__getitem__) == answer.token
    (answer,) = make_host(spec, 0, IMPROVED["collm"]).step([ask]).answers
    assert answer.logprobs is None


def test_an_aborted_request_ends_and_the_others_go_on(
    make_spec: MakeSpec, pair: AlgorithmSpec, prompts: list[Record], truth: Truth
) -> None:
    execution = Execution(make_spec, pair, ONE_PROCESS["r2r-improved"])
    long = [i for i, record in enumerate(prompts) if record.sampling.max_tokens == 30][:2]
    for i in long:
        execution.submit(f"r{i}", prompts[i])
    execution.executor.turn()
    execution.executor.abort(f"r{long[0]}")
    while execution.executor.turn() is not None:
        pass
    assert execution.record(f"r{long[0]}", prompts[long[0]]).finish_reason == FinishReason.ABORT
    assert equal([execution.record(f"r{long[1]}", prompts[long[1]])], [truth(pair)[long[1]]])


STYLES = {"r2r": OFFICIAL["r2r"], "collm": OFFICIAL["collm"], "std": STD, "std_plus": STD_PLUS}


@pytest.mark.parametrize("name", STYLES)
def test_processes_and_servers_tell_the_truth(
    name: str, make_spec: MakeSpec, pair: AlgorithmSpec, prompts: list[Record], truth: Truth
) -> None:
    with serve(make_spec(pair), STYLES[name], 4) as service:
        assert [info.num_params for info in service.models] == sorted(info.num_params for info in service.models)
        jobs = [("r2r", record.prompt_ids, record.sampling) for record in prompts]
        assert equal(send(service, jobs[:2], 2), truth(pair)[:2])  # type: ignore[arg-type]
        service.reset_stats()
        records = send(service, jobs, 4)  # type: ignore[arg-type]
        assert equal(records, truth(pair))
        reports = service.stats()
    written = sum(len(record.token_ids) for record in records)
    assert sum(sum(report["commits"]["r2r"]) for report in reports) == written
    assert reports[1]["transitions"]["r2r"][0] == sum(sum(report["transitions"]["r2r"]) for report in reports[1:])
    for report in reports:
        assert len(report["step_ms"]) == report["steps"] > 0
        parts = report["breakdown_ms"]
        assert set(parts) == {*PARTS, "others"} and min(parts.values()) >= 0 < parts["inference"]
        assert sum(parts.values()) == pytest.approx(sum(report["step_ms"]) / report["steps"])


def test_a_server_answers_others_between_the_chunks_of_a_long_prompt(
    make_spec: MakeSpec, pair: AlgorithmSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = {"long": [1 + i % 60 for i in range(200)], "short": [5, 6, 7]}
    asks = {rid: Ask(rid, 0, ids, [], len(ids), SamplingParams(0, 9), {}) for rid, ids in prompts.items()}
    alone = {rid: make_host(make_spec(pair), 0, STD).step([ask]).answers[0].token for rid, ask in asks.items()}
    host = make_host(make_spec(pair), 0, STD)
    server, passes, real = _Server(host, 16), list[list[str]](), host._engine.step

    def step(rows: Sequence[Row]) -> EngineOutput:
        passes.append([row.rid for row in rows])
        while len(passes) == 1 and server._arrived.empty():
            time.sleep(0.001)
        return real(rows)

    monkeypatch.setattr(host._engine, "step", step)
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(server.act, _Step([asks["long"]]))]
        while not passes:
            time.sleep(0.001)
        answers.append(clients.submit(server.act, _Step([asks["short"]])))
        replies = [answer.result(30.0) for answer in answers]
    assert passes[0] == ["long"] and ["long", "short"] in passes[1:3] and len(passes) == 7  # chunks of 32
    assert [reply.answers[0].token for reply in replies if reply] == [alone["long"], alone["short"]]
    assert sum(reply.tokens for reply in replies if reply) == 203


@pytest.mark.parametrize("style", [STD, STD_PLUS], ids=["std", "std_plus"])
def test_requests_for_which_kv_has_no_room_wait_for_the_others(
    make_spec: MakeSpec, pair: AlgorithmSpec, style: Style
) -> None:
    asks = [Ask(f"r{i}", 0, [1 + (i + j) % 60 for j in range(50)], [], 50, SamplingParams(0, 9), {}) for i in range(4)]
    roomy = make_host(make_spec(pair), 0, style)
    spec = make_spec(pair)
    spec.engine = msgspec.structs.replace(spec.engine, capacity_tokens=128, chunk_tokens=64)  # of two requests
    host, passes = make_host(spec, 0, style), []
    for token in range(3):
        replies = {}
        for ask in asks:
            host.begin(ask)
        while len(replies) < len(asks):
            made = host.turn()
            passes.append(len(made))
            replies |= made
        answers = [replies[ask.rid].answers[0].token for ask in asks]
        assert answers == [answer.token for answer in roomy.step(asks).answers]
        ids = [[*ask.ids, answer] if style is STD else [answer] for ask, answer in zip(asks, answers, strict=True)]
        asks = [Ask(ask.rid, 0 if style is STD else 50 + token, own, [], 50, ask.sampling, {})
                for ask, own in zip(asks, ids, strict=True)]
    assert passes == [2] * 6
    host.end([ask.rid for ask in asks])
    long = [Ask(f"l{i}", 0, [1 + (i + j) % 60 for j in range(99)], [], 99, SamplingParams(0, 9), {}) for i in range(3)]
    assert host.step(long).answers == roomy.step(long).answers  # half of one and half of another fill it
    with pytest.raises(RuntimeError, match="a KV pool of 128 tokens is too small for a request"):
        host.step([Ask("r9", 0, [1] * 200, [], 200, SamplingParams(0, 9), {})])


def test_a_death_is_heard_of_and_nothing_is_left(make_spec: MakeSpec, pair: AlgorithmSpec) -> None:
    service = OfficialService(make_spec(pair), OFFICIAL["citer"], 1)
    pid = service._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="process has ended"):
        service.poll(30.0)
    service.close()
    assert not service._process.is_alive()


def test_bad_input_is_told_as_such(make_spec: MakeSpec, pair: AlgorithmSpec) -> None:
    spec = make_spec(pair)
    spec.models[1] = replace_path(spec.models[1])
    with pytest.raises(InputError, match=r"models\.roles\.\*\.path='/nowhere'"):
        OfficialService(spec, OFFICIAL["r2r"], 1)


def test_drafts_are_refused_before_anything_is_started(make_spec: MakeSpec) -> None:
    drafting = {role: {"_target_": f"zoo.speculative.router.Speculative{role.title()}"} for role in ("small", "large")}
    drafting["small"]["drafts_per_step"] = 4
    spec = make_spec(AlgorithmSpec(name="speculative", roles=["small", "large"], entry="small", models=[0, 1],
                                   routers=drafting))
    with pytest.raises(InputError, match=r"algo=speculative: makes drafts"), serve(spec, STD, 1):
        raise AssertionError("it was started")


def replace_path(model: Any) -> Any:
    return msgspec.structs.replace(model, path="/nowhere")


def test_algorithms_without_released_code_need_a_style() -> None:
    assert style_of("r2r", None, improved=False) is OFFICIAL["r2r"]
    assert style_of("entropy", "r2r", improved=True) is IMPROVED["r2r"]
    with pytest.raises(InputError, match=r"algo=r_stitch: has no released code .* allowed is one of r2r, citer"):
        style_of("r_stitch", None, improved=False)
    with pytest.raises(InputError, match=r"official\.like=x: "):
        style_of("entropy", "x", improved=False)


def test_tokens_that_follow_others_wait_for_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    class Pipe:
        def send_bytes(self, data: bytes) -> None:
            sent.append(len(msgspec.msgpack.decode(data)))

    now = 1.0
    monkeypatch.setattr("baselines.service.time.perf_counter", lambda: now)
    outbox = _Outbox(Pipe())  # type: ignore[arg-type]
    outbox.send([Tokens("r", 0, [5], 0)])
    outbox.send([Tokens("r", 1, [6], 0)])
    outbox.send([Tokens("s", 4, [6], 0)])
    assert sent == [1]
    now += 0.1
    outbox.send([Tokens("r", 2, [7], 0)])
    assert sent == [1, 3]
    outbox.send([Tokens("r", 3, [8], 0)])
    outbox.send([Ended("r", FinishReason.STOP, 4, 0, 0)])
    assert sent == [1, 3, 2]
