"""openai-python, unchanged, against a running server: `make clients`, or OPENAI_BASE_URL=... pytest tests/clients.

Skipped where the client is not installed or no server is named: it has an environment of its own.
"""
from __future__ import annotations

import os
import time

import pytest

openai = pytest.importorskip("openai")
URL = os.environ.get("OPENAI_BASE_URL")
pytestmark = pytest.mark.skipif(URL is None, reason="OPENAI_BASE_URL names no server")
QUESTION = [{"role": "user", "content": "Ann has 12 coins and finds 5 more. How many coins does she have?"}]


@pytest.fixture(scope="module")
def client():
    return openai.OpenAI(base_url=URL, api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_a_stream_says_what_the_whole_answer_says(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_completion_tokens=64)
    text, usage = "", None
    for chunk in client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_completion_tokens=64, stream=True,
            stream_options={"include_usage": True}):
        if chunk.usage is not None:
            assert chunk.choices == []
            usage = chunk.usage
        else:
            text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content and text
    assert usage == whole.usage and usage.completion_tokens <= 64


def test_logprobs_and_several_answers(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, n=2, temperature=1.0, seed=1,
                                            logprobs=True, top_logprobs=2, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in choice.logprobs.content)


def test_completions_with_a_stop_string(client, model):
    whole = client.completions.create(model=model, prompt="1 + 1", temperature=0, max_tokens=24).choices[0].text
    stop = whole[len(whole) // 2]
    short = client.completions.create(model=model, prompt="1 + 1", temperature=0, max_tokens=24, stop=stop).choices[0]
    assert short.text == whole[: whole.index(stop)] and short.finish_reason == "stop"


def test_errors_are_the_clients_own(client, model):
    with pytest.raises(openai.NotFoundError, match="model="):
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=model, messages=QUESTION, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="tools: not supported"):
        client.chat.completions.create(model=model, messages=QUESTION, tools=[
            {"type": "function", "function": {"name": "f", "parameters": {}}}])


def test_a_stream_that_is_closed_early_frees_its_request(client, model):
    stream = client.completions.create(model=model, prompt="1", temperature=1, max_tokens=2000, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 5
    while client.get("/../server_info", cast_to=object)["open_requests"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
