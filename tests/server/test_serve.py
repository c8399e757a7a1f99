"""The command itself, on the embedded models: real processes, real signals."""
from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from tokenrouter.cli import main
from tokenrouter.core import SamplingParams
from tokenrouter.interface import Algorithm
from tokenrouter.server.serve import listen
from tokenrouter.server.settings import read
from zoo.reference import Reference, compare
from zoo.walk import Record

ROOT = Path(__file__).parents[2]
PROMPT = [{"role": "user", "content": "Ann has 12 coins and finds 5 more. How many coins does she have?"}]


def start(*overrides: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a terminal would."""
    return subprocess.Popen(
        [sys.executable, "-m", "tokenrouter.cli", "serve", "models=tiny", "server.port=0", *overrides],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler))  # ignored by background jobs


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Running:
    def __init__(self, *overrides: str) -> None:
        self.process = start(*overrides)
        assert self.process.stdout is not None
        url = re.search(r"http://[\d.:]+", self.process.stdout.readline())
        assert url, self.process.communicate()[1]
        self.client = httpx.Client(base_url=url[0], timeout=120)

    def stop(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    started = Running("algo=entropy", "hardware.pin=[]")
    yield started
    started.stop()


def test_the_answer_is_the_references(running: Running):
    body = {"messages": PROMPT, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "return_routing": True,
            "repetition_penalty": 1.3, "min_tokens": 20, "routing": {"threshold": 0.1}}
    choice = running.client.post("/v1/chat/completions", json=body).json()["choices"][0]["routing"]
    prompt = running.client.post("/tokenize", json={"messages": PROMPT}).json()["tokens"]
    config, spec = read(["algo=entropy"])
    algorithm = Algorithm("entropy", tuple(config.algo.roles), config.algo.roles, config.algo.entry)
    sampling = SamplingParams(choice["seed"], 40, ignore_eos=True, repetition_penalty=1.3, min_tokens=20)
    got = Record(prompt, sampling, {"threshold": 0.1}, choice["token_ids"], choice["token_models"], "length",
                 choice["handoffs"], choice["discarded"])
    true = Reference.load(algorithm, [m.path for m in spec.models]).decode(prompt, sampling, {"threshold": 0.1})
    assert compare(got, true).kind != "diverged" and set(got.token_models) == {0, 1}


def test_a_subserver_that_is_killed_is_not_noticed_by_clients(running: Running):
    body = {"prompt": [5, 6, 7], "temperature": 1.0, "seed": 1, "max_tokens": 300, "ignore_eos": True, "n": 4}
    whole = running.client.post("/v1/completions", json=body).json()
    victim = children(running.process.pid)[-1]
    text = [""] * 4
    with running.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        for number, line in enumerate(filter(None, response.iter_lines())):
            if number == 100:
                os.kill(victim, signal.SIGKILL)
            if line != "data: [DONE]":
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    text[choice["index"]] += choice["text"]
    assert text == [choice["text"] for choice in whole["choices"]]


def test_on_sigterm_what_is_under_way_ends_and_nothing_is_left(running: Running):
    """Runs last: it ends the server."""
    body = {"prompt": [5], "temperature": 1.0, "max_tokens": 400, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    with running.client.stream("POST", "/v1/completions", json=body) as response:
        lines = filter(None, response.iter_lines())
        next(lines)
        running.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-1] == "data: [DONE]" and json.loads(rest[-2][6:])["usage"]["completion_tokens"] == 400
    deadline = time.monotonic() + 60
    while running.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running.process.returncode == 0
    with pytest.raises(httpx.ConnectError):
        running.client.get("/health")
    assert running.process.stderr is not None
    said = running.process.stderr.read().splitlines()
    logged = [json.loads(line) for line in said if line.startswith("{")]
    assert {"method", "path", "status", "ms"} <= set(logged[0]) and "cmpl-" in logged[0]["id"]
    assert logged[-1]["completion_tokens"] == 400
    plain = [line for line in said if not line.startswith(("{", "waiting for "))]
    assert plain[0] == "starting 2 model(s): small, large"
    assert plain[-1] == "stopping: 1 answer(s) under way have 30 s to end"
    died, again = plain[1], plain[-2]  # of a test before this one
    assert died == "subserver 1 (large) died: killed by SIGKILL" and again == "  it is started anew (1 of 10 times)"


def interrupt(process: subprocess.Popen[str], code: int = 130) -> None:
    """Ctrl-C, of which the terminal tells the whole group; for code 0 SIGTERM, to the command alone. Nothing may be
    left, nor anything said but that it stops."""
    below = children(process.pid)
    if code:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    _, said = process.communicate(timeout=120)
    *before, last = said.splitlines()
    assert process.returncode == code and last.startswith("stopping: "), said
    assert all(line.startswith(("waiting for ", "starting ")) for line in before), said
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_sent_in_small_pieces_leaves_at_once():
    config, _ = read(["algo=entropy", "models=tiny", "server.port=0"])
    with listen(config.server) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()


@pytest.mark.parametrize("code", [130, 0])
def test_who_is_told_to_end_while_the_models_load_leaves_nothing(code: int):
    process = start("algo=entropy", "hardware.pin=[]")
    try:
        while len(children(process.pid)) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        interrupt(process, code)
    finally:
        process.kill()


@contextmanager
def streaming(drain_s: float) -> Iterator[tuple[Running, Iterator[str]]]:
    """A server, and the lines of a long answer, the first of which has come; it must end as drained."""
    started = Running("algo=entropy", "hardware.pin=[]", f"server.drain_s={drain_s}", "server.log=false")
    body = {"prompt": [5], "temperature": 1.0, "max_tokens": 15_000, "ignore_eos": True, "stream": True}
    try:
        with started.client.stream("POST", "/v1/completions", json=body) as response:
            lines = filter(None, response.iter_lines())
            next(lines)
            yield started, lines
            *_, error, end = lines
        assert json.loads(error[6:])["error"]["code"] == "draining" and end == "data: [DONE]"
    finally:
        started.stop()


def test_ctrl_c_ends_everything_once_the_time_to_drain_is_over():
    with streaming(drain_s=0.2) as (started, _):
        interrupt(started.process)


def test_a_second_signal_ends_what_is_under_way():
    with streaming(drain_s=600) as (started, lines):
        started.process.send_signal(signal.SIGTERM)
        for _ in range(50):  # the first lets it go on
            assert "error" not in json.loads(next(lines)[6:])
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(60) == 0


@pytest.mark.parametrize("override, message", [
    ("server.port=70000", r"server\.port=70000: allowed is"), ("server.prot=1", r"server\.prot=1: unknown; allowed is"),
    ("server.host=203.0.113.1", r"server\.host=203\.0\.113\.1"), ("server.thresholds=[2.0]", "server.thresholds"),
    ("batching.launch_log=true", r"batching\.launch_log=true: allowed with server\.observe_s=null"),
    ("+engine.options.server_args={nnodes: 2}", r"cluster\.on_death=restart: allowed with .*nnodes=2 is fail"),
    ("server.algorithms=[nothing]", "algo=nothing: allowed is one of"), ("models=nothing", "models=nothing"),
])
def test_what_is_wrong_with_the_configuration_is_told_before_anything_starts(
        capsys: pytest.CaptureFixture[str], override: str, message: str):
    assert main(["serve", "algo=entropy", override]) == 2
    assert re.match(message, capsys.readouterr().err.splitlines()[-1])  # before it perhaps what was waited for
