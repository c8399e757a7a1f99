"""Other programs' servers for standard serving: what they are asked, what they answer, and what becomes of them.

With a server that runs: tests/engine/sglang/test_std.py.
"""
from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from baselines.host import Ask
from baselines.launch import Process, Processes, running
from baselines.served import ServedHost, ServerAt, check, width
from baselines.servers import SERVERS, Told, flags
from bench.systems.std_servers import serve
from tests.baselines.conftest import MakeSpec
from tests.scripted import dummy
from tokenrouter.cluster.models import output_table
from tokenrouter.cluster.spec import AlgorithmSpec, ClusterSpec
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.interface import BaseRouter, StayRouter
from zoo.models import path

# What SGLang 0.5.21 and vLLM 0.32 answered for the embedded small model after 55 tokens; SGLang's is cut short: of 96
# hidden states two are left, and what followed them is not here.
SGLANG = b"""{"output_ids":[67],"meta_info":{"id":"116db454aba5465e934e297a5c0bce63","finish_reason":{"type":"length",
"length":1},"prompt_tokens":55,"weight_version":"default","num_retractions":0,"input_token_logprobs":[],
"output_token_logprobs":[[-0.9060846567153931,67,null]],"output_token_logprobs_length":1,"input_top_logprobs":[],
"output_top_logprobs":[[[-0.9060846567153931,67,null],[-2.329493999481201,81,null],[-2.5931248664855957,274,null]]],
"reasoning_tokens":0,"completion_tokens":1,"cached_tokens":0,"weight_versions":[{"version":"default","start":0,"end":1}],
"cached_tokens_details":null,"hidden_states":[-0.91416335105896,-0.41914594173431396]}}"""
VLLM = b"""{"id":"cmpl-a73930aa1408c930","object":"text_completion","created":1796024390,"model":"model","choices":
[{"index":0,"text":"a","logprobs":{"text_offset":[0],"token_logprobs":[-0.9060834050178528],"tokens":["token_id:67"],
"top_logprobs":[{"token_id:67":-0.9060834050178528,"token_id:81":-2.329493761062622,"token_id:274":-2.593125104904175}]},
"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,
"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-5ea2e8ab","usage":{"prompt_tokens":55,
"total_tokens":56,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":32,"created_cache_tokens":null,
"multimodal_tokens":null},"completion_tokens_details":null},
"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"""


def test_answers_are_understood() -> None:
    ids = [67, 81, 274]
    assert SERVERS["sglang"].read(SGLANG) == Told(
        ids, [-0.9060846567153931, -2.329493999481201, -2.5931248664855957],
        [-0.91416335105896, -0.41914594173431396], 55, None)
    assert SERVERS["vllm"].read(VLLM) == Told(
        ids, [-0.9060834050178528, -2.329493761062622, -2.593125104904175], None, 55 - 32, None)


def test_arguments_are_spelled_as_servers_read_them() -> None:
    options = {"max-batch": 4, "sleep_on_idle": True, "sizes": [1, 2], "slow": False, "revision": None}
    assert flags(options) == ["--max-batch", "4", "--sleep-on-idle", "--sizes", "1", "2"]


class Three(StayRouter):
    top_logits = 3


@pytest.mark.parametrize(("router", "sampling", "count"), [
    (StayRouter(), SamplingParams(0, 9), 1), (Three(), SamplingParams(0, 9), 3),
    (BaseRouter(), SamplingParams(0, 9), 64),  # says nothing of the logits that it looks at
    (Three(), SamplingParams(0, 9, 0.7), 64), (Three(), SamplingParams(0, 9, 0.7, top_k=5), 5),
    (Three(), SamplingParams(0, 9, 0.7, top_k=2), 3), (StayRouter(), SamplingParams(0, 9, min_tokens=1), 64),
    (StayRouter(), SamplingParams(0, 9, frequency_penalty=1), 64),
])  # fmt: skip
def test_as_many_log_probabilities_as_are_looked_at(router: BaseRouter, sampling: SamplingParams, count: int) -> None:
    assert width(router, sampling, 64, 64) == count
    assert width(router, sampling, 66, 64) == min(66, count + 2)  # the two that may not be drawn may be the likeliest


def test_logits_are_products_with_the_output_table(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path("small"), dtype=torch.float32)
    assert torch.equal(output_table(str(path("small")), None), model.get_output_embeddings().weight)
    apart = dummy(3, 64, 0)
    apart.save_pretrained(tmp_path)
    assert torch.equal(output_table(str(tmp_path), None), apart.get_output_embeddings().weight)
    apart.config.logit_scale = 2.0
    apart.config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"logit_scale"):
        output_table(str(tmp_path), None)


class Fake:
    """Sessions as SGLang's, which may never have more than that; the likeliest token says what they have."""

    def __init__(self, tokens: int, sessions: int) -> None:
        self.held: dict[str, list[int]] = {}
        self.calls: list[list[int]] = []  # ids of each
        self.opened = Counter[str]()
        self._room, self._one = (tokens, sessions), threading.Lock()

    def answer(self, path: str, body: dict[str, Any]) -> bytes:
        with self._one:
            if path == "/open_session":
                assert body["streaming"] and body["session_id"] not in self.held
                self.held[body["session_id"]] = []
                self.opened[body["session_id"]] += 1
                return msgspec.json.encode(body["session_id"])
            if path == "/close_session":
                del self.held[body["session_id"]]
                return b""
            assert body["sampling_params"]["max_new_tokens"] == 0  # else its own token would come before the next ids
            ids = self.held[body["session_params"]["id"]]
            ids += body["input_ids"]
            self.calls.append(body["input_ids"])
            room = sum(map(len, self.held.values())), len(self.held)
            assert all(used <= most for used, most in zip(room, self._room, strict=True)), room
        time.sleep(0.005)  # others come meanwhile
        top = [[-0.1, sum(ids) % 50, None], [-9.0, 50, None]]
        return msgspec.json.encode({"meta_info": {"output_top_logprobs": [top], "prompt_tokens": len(ids),
                                                  "cached_tokens": len(ids) - len(body["input_ids"])}})


@pytest.fixture
def fake() -> Iterator[tuple[Fake, ServerAt]]:
    fake = Fake(100, 4)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                status, answer = 200, fake.answer(self.path, body)
            except (AssertionError, KeyError) as error:
                status, answer = 400, repr(error).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield fake, ServerAt("sglang", f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def kept(make_spec: MakeSpec, pair: AlgorithmSpec, at: ServerAt) -> ServedHost:
    """Its server has room for 100 tokens and 4 sessions."""
    routers = {role: {"_target_": "tokenrouter.interface.StayRouter"} for role in pair.roles}
    spec = make_spec(msgspec.structs.replace(pair, routers=routers))
    spec.engine.capacity_tokens, spec.engine.max_batch = 100, 4
    return ServedHost(spec, 0, at, keep=True)


def ask(rid: str, start: int, ids: list[int]) -> Ask:
    return Ask(rid, start, ids, [], 1, SamplingParams(0, 9), {})


def test_a_session_is_sent_new_tokens_only(
    make_spec: MakeSpec, pair: AlgorithmSpec, fake: tuple[Fake, ServerAt]
) -> None:
    server, at = fake
    host = kept(make_spec, pair, at)
    replies = [host.step([ask("r0", start, ids)]) for start, ids in [(0, [3, 4, 5]), (3, [6]), (4, []), (4, [7, 8])]]
    assert server.calls == [[3, 4, 5], [6], [], [7, 8]]
    assert [reply.answers[0].token for reply in replies] == [12, 18, 18, 33]
    host.end(["r0", "never heard of"])
    assert not server.held
    host.step([ask("r0", 0, [9])])  # another one of that name
    assert server.calls[-1] == [9]


def test_sessions_are_closed_where_a_server_would_have_no_room(
    make_spec: MakeSpec, pair: AlgorithmSpec, fake: tuple[Fake, ServerAt]
) -> None:
    """Ten requests of 20 to 29 tokens at once, by more threads than there may be sessions."""
    server, at = fake
    host = kept(make_spec, pair, at)

    def request(index: int) -> list[int]:
        rid = f"r{index}"
        tokens = [host.step([ask(rid, 0, [index] * 20)]).answers[0].token]
        for length in range(20, 29):
            tokens += [host.step([ask(rid, length, [index])]).answers[0].token]
        host.end([rid])
        return tokens

    with ThreadPoolExecutor(10) as threads:
        made = list(threads.map(request, range(10)))
    assert made == [[index * length % 50 for length in range(20, 30)] for index in range(10)]
    assert max(server.opened.values()) > 1 and not server.held


def hidden(spec: ClusterSpec) -> ClusterSpec:
    """Its small router needs hidden states."""
    routers = {**spec.algorithms[0].routers, "small": {"_target_": "zoo.citer.router.CiterSmall",
                                                       "weights": "zoo/citer/weights/small_large.safetensors"}}
    return msgspec.structs.replace(spec, algorithms=[msgspec.structs.replace(spec.algorithms[0], routers=routers)])


def test_what_a_server_does_not_give_is_refused(make_spec: MakeSpec, pair: AlgorithmSpec) -> None:
    spec = make_spec(pair)
    check(spec, "vllm", "std_vllm")
    check(hidden(spec), "sglang", "std_sglang")
    message = r"system=std_vllm: vLLM's API does not give the hidden states .* algo=r2r needs .* 'small'; allowed are"
    with pytest.raises(InputError, match=message):
        check(hidden(spec), "vllm", "std_vllm")
    with pytest.raises(InputError, match=r"system\.options\.sessions=true: vLLM's server has none; allowed is false"):
        check(spec, "vllm", "std_vllm", sessions=True)
    with pytest.raises(InputError, match=r"system\.options\.server='tgi': allowed is one of sglang, vllm"):
        check(spec, "tgi", "std_tgi")
    spec.engine.kind = "emulated"
    with pytest.raises(InputError, match=r"engine=emulated: "):
        check(spec, "vllm", "std_vllm")


@pytest.mark.parametrize(("python", "message"), [
    (sys.executable, r"system\.options\.python='.*': has no "), ("/nowhere/python", r"cannot be started"),
])
def test_an_environment_without_the_server_is_refused(
    make_spec: MakeSpec, pair: AlgorithmSpec, python: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVERS, "no_such_server", SERVERS["sglang"])
    with pytest.raises(InputError, match=message), \
            running(make_spec(pair), "no_such_server", python, {}, 1.0):
        raise AssertionError("it was started")


def test_drafts_are_refused_before_anything_is_started(make_spec: MakeSpec) -> None:
    routers: dict[str, Any] = {
        role: {"_target_": f"zoo.speculative.router.Speculative{role.title()}"} for role in ("small", "large")}
    spec = make_spec(AlgorithmSpec(name="speculative", roles=["small", "large"], entry="small", models=[0, 1],
                                   routers=routers))
    with pytest.raises(InputError, match=r"algo=speculative: makes drafts"), \
            serve(spec, server="sglang", python=None, server_args={}, start_s=1.0, clients=1):
        raise AssertionError("it was started")


def started(folder: Path, code: str) -> Processes:
    """A program that is no server."""
    processes = Processes("sglang")
    processes.add(Process("small", [sys.executable, "-c", code], dict(os.environ), None, folder / "log",
                          "http://127.0.0.1:9"))
    return processes


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    code = "print('RuntimeError: out of memory', *range(20), 'bye', sep='\\n', flush=True); raise SystemExit(3)"
    processes = started(tmp_path, code)
    with pytest.raises(RuntimeError, match=r"of small has ended, exit code 3; the end of its log:") as raised:
        processes.wait(60.0)
    lines = [line.strip() for line in str(raised.value).splitlines()]
    assert lines[1] == "RuntimeError: out of memory" and lines[2:] == [*map(str, range(6, 20)), "bye"]
    processes.close()


def test_a_server_that_stays_silent_is_given_up_with_all_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print(os.getpid(), flush=True)
time.sleep(600)"""
    monkeypatch.setattr("baselines.launch.STOP_S", 0.5)
    processes = started(tmp_path, code)
    log, pids = tmp_path / "log", set[int]()
    while len(pids) < 2:  # it has begun, and its child too
        time.sleep(0.05)
        pids = {int(word) for word in log.read_text().split()} if log.exists() else set()
    with pytest.raises(RuntimeError, match=r"no answer in 1 s \(system\.options\.start_s\) by the server of small"):
        processes.wait(1.0)
    processes.close()
    until = time.monotonic() + 10
    while any(map(lives, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(lives, pids))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
