"""What the terminal commands show of a running server."""
from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.server.local import LocalServer
from tokenrouter.cli import main
from tokenrouter.server.chat import coloured


def test_chat_shows_the_answer_and_who_wrote_it(local: LocalServer, capsys: pytest.CaptureFixture[str]):
    body = {"messages": [{"role": "user", "content": "5 + 6"}], "temperature": 0, "return_routing": True}
    choice = local.client.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert main(["chat", "--url", f"{local.url}/v1", "5", "+", "6"]) == 0
    shown = capsys.readouterr().out
    authors = choice["routing"]["token_models"]
    assert f" m0: {authors.count(0)} " in shown and f" m1: {authors.count(1)} " in shown
    assert choice["message"]["content"].split("\n")[0].strip()[:10] in shown


def test_chat_tells_what_the_server_refuses(local: LocalServer, capsys: pytest.CaptureFixture[str]):
    assert main(["chat", "--url", local.url, "--model", "other", "hello"]) == 2
    assert "model='other': allowed is one of toy" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    (["chat", "--url", "http://127.0.0.1:1"], "--url=http://127.0.0.1:1: "),  # and asks for no question
    (["chat", "--url", "127.0.0.1:1", "hello"], "--url=127.0.0.1:1: "),
    (["chat", "--url", "http://here:x"], "--url=http://here:x: Invalid port"),
    (["top", "--url", "http://127.0.0.1:1", "--once"], "--url=http://127.0.0.1:1: "),
    (["chat", "http://localhost:1"], "question=http://localhost:1: is an address; allowed is --url http://localhost:1"),
])
def test_without_a_server_commands_say_so(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out.strip() == "" and err.startswith(message) and err.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "plan"])
def test_what_takes_long_to_import_is_not_waited_for_in_silence(command: str):
    code = f"import sys; from tokenrouter.cli import main\ntry: main([{command!r}, '--help'])\n" \
        "finally: print({'torch', 'transformers', 'numpy', 'scipy', 'uvicorn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("\nset()\n"), done


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
