"""What the commands that speak to a running server share: where it is, and what is told if it does not answer."""
from __future__ import annotations

import argparse
import json
import os

import httpx

from tokenrouter.core import InputError

ANSWER_S = 10.0  # for what needs no model


def add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="where the server is (default: %(default)s)")


def connect(url: str) -> httpx.Client:
    """A client with the key that OPENAI_API_KEY holds. `url`: with or without /v1."""
    key = os.environ.get("OPENAI_API_KEY")
    try:
        return httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), timeout=ANSWER_S,
                            headers={"Authorization": f"Bearer {key}"} if key else {})
    except httpx.InvalidURL as error:
        raise _no_server(url, error) from None


def get(client: httpx.Client, path: str) -> httpx.Response:
    """InputError unless a server answers, and with 200."""
    try:
        answer = client.get(path)
    except httpx.HTTPError as error:
        raise no_answer(client, error) from None
    check(client, answer)
    return answer


def no_answer(client: httpx.Client, error: httpx.HTTPError) -> InputError:
    late = isinstance(error, httpx.TimeoutException)
    return _no_server(client.base_url, f"no answer in {ANSWER_S:g} s, it may still be loading" if late else error)


def check(client: httpx.Client, answer: httpx.Response) -> None:
    """InputError, with what the server says, unless it says 200."""
    if answer.status_code == 200:
        return
    try:
        message = json.loads(answer.read())["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise _no_server(client.base_url, f"it answers {answer.status_code}") from None
    raise InputError(message)


def _no_server(url: object, reason: object) -> InputError:
    return InputError(f"--url={str(url).rstrip('/')}: {reason}; allowed is the address of a running server")
