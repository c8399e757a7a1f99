"""tokenrouter chat: talk to a server in the terminal, the text coloured by the model that wrote it."""
from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
from rich.console import Console
from rich.text import Text

from tokenrouter.core import InputError
from tokenrouter.server.client import add_url, check, connect, get, no_answer

# By role, of which the first writes most; with NO_COLOR what is left still differs.
STYLES = ("default", "bold red", "underline blue", "bold underline magenta", "italic yellow")
DONE = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    parser.add_argument("--model", help="one of /v1/models; the server's first one if left out")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--threshold", help="the algorithm's threshold for this conversation")
    parser.add_argument("question", nargs="*", help="asked at once, without a conversation")


def run(args: argparse.Namespace) -> int:
    if len(args.question) == 1 and args.question[0].startswith(("http://", "https://")):
        raise InputError(f"question={args.question[0]}: is an address; allowed is --url {args.question[0]}")
    console = Console()
    with connect(args.url) as client:
        get(client, f"/v1/models/{quote(args.model, safe='')}" if args.model else "/v1/models")
        messages: list[dict[str, str]] = []
        for question in [" ".join(args.question)] if args.question else _typed(console):
            messages.append({"role": "user", "content": question})
            body = {"messages": messages, "model": args.model, "temperature": args.temperature, "stream": True,
                    "return_routing": True, "routing": _routing(args.threshold)}
            messages.append({"role": "assistant", "content": _answer(console, client, body)})
    return DONE


def coloured(pieces: Sequence[tuple[str, int]]) -> Text:
    """Text with the role that wrote it, as a terminal shows it."""
    return Text.assemble(*((text, STYLES[role % len(STYLES)]) for text, role in pieces))


def _routing(threshold: str | None) -> dict[str, Any]:
    if threshold is None:
        return {}
    try:
        return {"threshold": float(threshold)}
    except ValueError:
        return {"threshold": threshold}


def _typed(console: Console) -> Iterator[str]:
    console.print("Ctrl-D ends the conversation.", style="dim")
    while True:
        try:
            yield console.input("[green]> [/green]")
        except EOFError:
            return


def _answer(console: Console, client: httpx.Client, body: dict[str, Any]) -> str:
    """Shows the answer as it comes; returns its text."""
    text, counts = "", [0] * len(STYLES)
    routing: dict[str, Any] = {}
    try:
        with client.stream("POST", "/v1/chat/completions", json=body, timeout=None) as response:
            check(client, response)
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise InputError(chunk["error"]["message"])
                routing = chunk["choices"][0].get("routing", {})
                piece, roles = chunk["choices"][0]["delta"].get("content", ""), routing.get("token_models", [])
                for role in roles:
                    counts[role % len(STYLES)] += 1
                text += piece
                console.print(coloured([(piece, roles[-1] if roles else 0)]), end="", soft_wrap=True)
    except httpx.HTTPError as error:
        raise no_answer(client, error) from None
    names = routing.get("models", [])
    legend = [(f" {name}: {counts[i]} ", i) for i, name in enumerate(names)]
    console.print()
    console.print(coloured(legend) + Text(f" handoffs: {routing.get('handoffs', 0)}", "dim"))
    return text
