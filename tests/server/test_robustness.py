"""Clients that vanish, limits that are reached, keys that are wrong."""
from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest

from tests.server.local import NEVER_ENDS, LocalServer, serving
from tokenrouter.server.generate import EventStream

LONG = {"prompt": [NEVER_ENDS, 1], "max_tokens": 1900, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow() -> Iterator[LocalServer]:
    """Every step takes 5 ms; four answers at most."""
    with serving("server.max_requests=4", "server.max_body_mb=0.01", step_s=0.005) as started:
        yield started


def leaves_mid_stream(slow: LocalServer) -> bool:
    """Whether all is free within a second of a client's leaving."""
    with slow.client.stream("POST", "/v1/completions", json={**LONG, "n": 2, "stream": True}) as response:
        lines = response.iter_lines()
        for _ in range(60):
            next(lines)
        assert {len(report["active"]) for report in slow.ask("check")} == {2}, "both models must know of both"
    return slow.settled(1.0)


def test_a_client_that_leaves_a_stream_frees_its_kv_everywhere_within_a_second(slow: LocalServer):
    assert any(leaves_mid_stream(slow) for _ in range(5)), "never once, so it is not the machine that was busy"
    assert slow.settled()
    assert all(engine.capacity().free == engine.capacity().total for engine in slow.engines)


def test_a_client_that_leaves_before_its_answer_frees_it_too(slow: LocalServer):
    with pytest.raises(httpx.ReadTimeout):
        slow.client.post("/v1/completions", json=LONG, timeout=0.3)
    assert slow.settled()


def test_beyond_the_limit_clients_are_told_when_to_come_back(slow: LocalServer):
    with slow.client.stream("POST", "/v1/completions", json={**LONG, "n": 3, "stream": True}) as response:
        next(response.iter_lines())
        refused = slow.client.post("/v1/completions", json={"prompt": [1], "n": 2})
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert slow.client.post("/v1/completions", json={"prompt": [1], "max_tokens": 2}).status_code == 200
    assert slow.settled()
    with slow.client.stream("POST", "/v1/completions", json={**LONG, "n": 4, "stream": True}) as response:
        next(response.iter_lines())
        assert slow.client.get("/health_generate").status_code == 200, "full is healthy"
    assert slow.settled()
    never = slow.client.post("/v1/completions", json={"prompt": [1], "n": 5})  # however long it waits
    assert never.status_code == 400 and never.json()["error"]["param"] == "n"


def test_a_stream_is_logged_when_it_is_over(slow: LocalServer, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "tokenrouter.server.requests")

    def lines(count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 20
        while len(caplog.messages) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return [json.loads(message) for message in caplog.messages]

    with slow.client.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 40, "stream": True}) as response:
        response.read()
    (whole,) = lines(1)
    assert (whole["status"], whole["prompt_tokens"], whole["completion_tokens"]) == (200, 2, 40)
    assert whole["ms"] >= 40 * slow.engines[0].step_s * 1e3 and "disconnected" not in whole
    with slow.client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        next(response.iter_lines())
    left = lines(2)[1]
    assert left["disconnected"] and 0 < left["completion_tokens"] < 1900
    assert slow.settled() and len(lines(2)) == 2


def counted(local: LocalServer) -> list[float]:
    """Answers that were cut off, and answers that ended."""
    lines = local.server.metrics.text().decode().splitlines()
    names = "sglang:num_aborted_requests_total{", "sglang:e2e_request_latency_seconds_count{"
    return [sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names]


def test_what_was_cut_off_and_what_ended_is_counted(slow: LocalServer):
    cut, ended = counted(slow)
    whole = slow.client.post("/v1/completions", json={**LONG, "max_tokens": 40}).json()["choices"][0]["text"]
    stopped = slow.client.post("/v1/completions", json={**LONG, "max_tokens": 400, "stop": [whole[10:14]]}).json()
    assert stopped["choices"][0]["finish_reason"] == "stop" and stopped["usage"]["completion_tokens"] < 40
    assert counted(slow) == [cut, ended + 2]
    with slow.client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        next(response.iter_lines())
    deadline = time.monotonic() + 20
    while counted(slow)[0] == cut and time.monotonic() < deadline:
        time.sleep(0.02)
    assert counted(slow) == [cut + 1, ended + 2] and slow.settled()


def test_a_request_that_takes_too_long_ends():
    with serving("server.timeout_s=1", step_s=0.005) as impatient:
        late = impatient.client.post("/v1/completions", json=LONG)
        assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
        with impatient.client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert json.loads(lines[-2])["error"]["type"] == "timeout_error" and lines[-1] == "[DONE]"
        assert impatient.settled()


def test_a_client_that_reads_no_more_is_not_waited_for():
    left: list[str] = []

    async def source() -> AsyncGenerator[bytes]:
        try:
            yield b"data: 1\n\n"
        finally:
            left.append("closed")

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(60 if message.get("body") else 0)

    async def receive() -> Any:
        await asyncio.sleep(60)

    note: dict[str, Any] = {}
    asyncio.run(EventStream(note, 0.05, source())({}, receive, send))  # type: ignore[arg-type]
    assert note == {"disconnected": True} and left == ["closed"]


def test_an_administrator_can_end_an_answer(slow: LocalServer):
    with slow.client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        rid = json.loads(next(lines))["id"]
        assert slow.client.post("/abort_request", json={"rid": rid}).status_code == 200
        rest = [json.loads(line) for line in lines if line != "[DONE]"]
    assert rest[-1]["choices"][0]["finish_reason"] == "abort"


def test_a_body_that_is_too_long_is_not_read(slow: LocalServer):
    for content in (b"x" * 20_000, (b"x" * 1000 for _ in range(20))):  # with and without a length told beforehand
        refused = slow.client.post("/v1/completions", content=content)
        assert refused.status_code == 413 and refused.json()["error"]["code"] == "body_too_large"


def status_of_a_long_body(local: LocalServer) -> bytes:
    """What a client gets that looks for an answer only when it has sent everything."""
    host, port = local.url.removeprefix("http://").split(":")
    head = "POST /v1/completions HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 9000000\r\n\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.encode() + b"x" * 9_000_000)
        return client.makefile("rb").readline().split()[1]


def test_a_client_that_is_still_sending_what_is_too_long_sees_why_it_is_refused(slow: LocalServer):
    assert status_of_a_long_body(slow) == b"413"


def test_while_draining_health_says_so(slow: LocalServer):
    slow.server.draining = True
    assert slow.client.get("/health").status_code == 503
    slow.server.draining = False
    assert slow.client.get("/health").status_code == 200


def test_keys():
    with serving("server.api_keys=[user-key]", "server.admin_key=admin-key") as local:

        def status(method: str, path: str, key: str | None) -> int:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            return local.client.request(method, path, headers=headers, json={"prompt": [1]}).status_code

        for key, user, admin in ((None, 401, 401), ("wrong", 401, 401), ("user-key", 200, 401),
                                 ("admin-key", 200, 200)):
            assert status("POST", "/v1/completions", key) == user
            assert status("GET", "/v1/models", key) == user
            assert status("POST", "/flush_cache", key) == admin
            assert status("GET", "/health", key) == 200
        assert status_of_a_long_body(local) == b"401"
        secret = local.client.get("/server_info", headers={"Authorization": "Bearer user-key"}).text
        assert "user-key" not in secret and "admin-key" not in secret


def test_without_an_admin_key_administrative_routes_are_shut_to_users():
    with serving("server.api_keys=[user-key]") as local:
        headers = {"Authorization": "Bearer user-key"}
        assert local.client.post("/flush_cache", headers=headers).status_code == 403
        assert local.client.post("/flush_cache").status_code == 403


def test_many_requests_with_random_aborts_leave_nothing_behind(local: LocalServer):
    """300 requests at concurrency 16; about a third is cut off somewhere, streams and whole answers alike."""
    kept: list[tuple[int, dict[str, Any], str]] = []
    jobs = iter(range(300))
    lock = threading.Lock()

    def client() -> None:
        with httpx.Client(base_url=local.url, timeout=60) as http:
            while True:
                with lock:
                    job = next(jobs, None)
                if job is None:
                    return
                rng = random.Random(job)
                prompt = [rng.randrange(3, 290) for _ in range(rng.randint(1, 30))]
                body = {"prompt": prompt, "max_tokens": rng.randint(1, 80), "stream": True,
                        "model": rng.choice(["toy", "entropy", "slm_only", "llm_only"])}
                give_up, text = rng.choice([None, None, rng.randint(0, 20)]), ""
                with http.stream("POST", "/v1/completions", json=body) as response:
                    assert response.status_code == 200
                    for number, line in enumerate(filter(None, response.iter_lines())):
                        if number == give_up:
                            break
                        if line != "data: [DONE]":
                            text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                    else:
                        with lock:
                            kept.append((job, body, text))

    threads = [threading.Thread(target=client) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads) and len(kept) > 150
    assert local.settled(2.0)
    for _, body, text in random.Random(0).sample(kept, 30):
        alone = local.client.post("/v1/completions", json={**body, "stream": False}).json()
        assert alone["choices"][0]["text"] == text
