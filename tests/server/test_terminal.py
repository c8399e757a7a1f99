"""What the terminal commands show of a running server."""
from __future__ import annotations

import time

import pytest

from tests.server.local import LocalServer
from tokenrouter.cli import main
from tokenrouter.server.chat import coloured


def test_chat_shows_the_answer_and_who_wrote_it(local: LocalServer, capsys: pytest.CaptureFixture[str]):
    body = {"messages": [{"role": "user", "content": "5 + 6"}], "temperature": 0, "return_routing": True}
    choice = local.client.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert main(["chat", "--url", local.url, "5", "+", "6"]) == 0
    shown = capsys.readouterr().out
    authors = choice["routing"]["token_models"]
    assert f" m0: {authors.count(0)} " in shown and f" m1: {authors.count(1)} " in shown
    assert choice["message"]["content"].split("\n")[0].strip()[:10] in shown


def test_chat_tells_what_the_server_refuses(local: LocalServer, capsys: pytest.CaptureFixture[str]):
    assert main(["chat", "--url", local.url, "--model", "other", "hello"]) == 2
    assert "model='other': allowed is one of toy" in capsys.readouterr().err
    assert main(["chat", "--url", "http://127.0.0.1:1", "hello"]) == 2
    assert main(["top", "--url", "http://127.0.0.1:1", "--once"]) == 2


def test_models_have_different_colours():
    styles = [span.style for span in coloured([("a", 0), ("b", 1), ("c", 2)]).spans]
    assert len(set(styles)) == 3


def test_top_shows_every_subserver(local: LocalServer, capsys: pytest.CaptureFixture[str]):
    local.client.post("/v1/completions", json={"prompt": [1], "max_tokens": 5})
    deadline = time.monotonic() + 20
    while not local.client.get("/server_info").json()["subservers"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert main(["top", "--url", local.url, "--once"]) == 0
    shown = capsys.readouterr().out
    assert "under way" in shown and "m0" in shown and "m1" in shown
