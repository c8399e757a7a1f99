"""Whatever is sent, the answer is an answer or an error in OpenAI's shape: never a 500, never silence."""
from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.local import LocalServer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "1"}]


def post(local: LocalServer, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return local.client.post(path, content=content, headers={"Content-Type": "application/json"})


def check_shape(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"] and "\n" not in error["message"]


@pytest.mark.parametrize("path, body, param", [
    (TEXT, {}, "prompt"), (TEXT, {"prompt": ""}, "prompt"), (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt"), (TEXT, {"prompt": [1, "a"]}, "prompt"), (TEXT, {"prompt": [-1]}, "prompt[0]"),
    (TEXT, {"prompt": [511, 512]}, "prompt"), (TEXT, {"prompt": 5}, "prompt"),
    (TEXT, {"prompt": [2**70]}, "prompt[0]"), (TEXT, {"prompt": "1", "max_tokens": 0}, "max_tokens"),
    (TEXT, {"prompt": "1", "max_tokens": 5000}, "max_tokens"), (TEXT, {"prompt": "1", "max_tokens": -1}, "max_tokens"),
    (TEXT, {"prompt": "a" * 2_000_000}, "prompt"), (TEXT, {"prompt": "1", "n": 0}, "n"),
    (TEXT, {"prompt": "1", "n": 10**9}, "n"), (TEXT, {"prompt": "1", "temperature": -1}, "temperature"),
    (TEXT, {"prompt": "1", "top_p": 0}, "top_p"), (TEXT, {"prompt": "1", "top_p": "high"}, "top_p"),
    (TEXT, {"prompt": "1", "stop": ""}, "stop"), (TEXT, {"prompt": "1", "stop": ["a", ""]}, "stop[1]"),
    (TEXT, {"prompt": "1", "echo": True, "logprobs": 1}, "echo"), (TEXT, {"prompt": "1", "best_of": 3}, "best_of"),
    (TEXT, {"prompt": "1", "suffix": "x"}, "suffix"), (TEXT, {"prompt": "1", "logit_bias": {"5": 1}}, "logit_bias"),
    (TEXT, {"prompt": "1", "logprobs": 21}, "logprobs"), (TEXT, {"prompt": "1", "min_tokens": 99}, "min_tokens"),
    (TEXT, {"prompt": "1", "model": "/etc/passwd"}, "model"), (TEXT, {"prompt": "1", "model": "entropy@0.33"}, "model"),
    (TEXT, {"prompt": "1", "routing": {"tau": 1}}, "routing.tau"),
    (TEXT, {"prompt": "1", "model": "entropy", "routing": {"threshold": 7}}, "routing.threshold"),
    (CHAT, {"messages": []}, "messages"), (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                                           "messages[0].content"),
    (CHAT, {"messages": MESSAGES, "tools": [{}]}, "tools"),
    (CHAT, {"messages": MESSAGES, "response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"messages": MESSAGES, "modalities": ["audio"]}, "modalities"),
])
def test_what_cannot_be_done_names_its_field(local: LocalServer, path: str, body: dict[str, Any], param: str):
    response = post(local, path, body)
    assert response.status_code == (404 if param == "model" else 400), response.text
    check_shape(response)
    error = response.json()["error"]
    assert error["param"] == param and "params" not in error["message"]


@pytest.mark.parametrize("body", [
    b"", b"{", b"\xff\xfe", b'{"prompt": NaN}', b'{"prompt": "1", "temperature": 1e999}',
    b'{"prompt": "\\ud800"}', b'{"prompt": "\xff"}', b"[" * 100_000, b'{"prompt": ' + b"[" * 100_000,
    b'{"unknown": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b', "prompt": "1"}', b"null", b"[]", b'"1"',
    b'{"prompt": "1", "seed": ' + b"9" * 5000 + b"}",
], ids=lambda body: repr(body[:24]))
def test_what_is_no_request_is_refused(local: LocalServer, body: bytes):
    response = post(local, TEXT, body)
    assert response.status_code == 400
    check_shape(response)


def test_unknown_fields_and_nulls_are_ignored(local: LocalServer):
    body = {"prompt": "1", "max_tokens": 3, "foo": {"bar": []}, "stop": None, "seed": None, "temperature": None,
            "user": "me", "store": True, "stream_options": None, "logit_bias": None, "suffix": None}
    assert post(local, TEXT, body).status_code == 200


def test_other_routes_and_methods(local: LocalServer):
    for method, path, status in (("GET", TEXT, 405), ("POST", "/nothing", 404), ("GET", "/v1/models/nothing", 404),
                                 ("GET", "/v1/models/../../etc/passwd", 404), ("DELETE", "/v1/models", 405)):
        response = local.client.request(method, path)
        assert response.status_code == status
        check_shape(response)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12)
NAMES = ("model stream stream_options n temperature top_p top_k min_p presence_penalty frequency_penalty seed stop "
         "repetition_penalty stop_token_ids include_stop_str_in_output min_tokens ignore_eos skip_special_tokens "
         "routing return_routing response_format logit_bias max_tokens max_completion_tokens logprobs top_logprobs "
         "tools tool_choice functions modalities echo best_of suffix prompt messages").split()
SMALL = st.one_of(JSON, st.integers(-3, 30), st.floats(-3, 3), st.booleans(), st.text("ab\ud800\u0000漢", max_size=5))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from([CHAT, TEXT]), fields=st.dictionaries(st.sampled_from(NAMES), SMALL, max_size=4),
       valid=st.booleans())
def test_any_values_in_any_fields(local: LocalServer, path: str, fields: dict[str, Any], valid: bool):
    base = {"prompt": "1", "messages": MESSAGES, "max_tokens": 3} if valid else {}
    check_shape(post(local, path, {**base, **fields}))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from([CHAT, TEXT, "/tokenize", "/detokenize", "/abort_request"]), body=JSON | st.binary())
def test_any_body_on_any_route(local: LocalServer, path: str, body: Any):
    check_shape(post(local, path, body))
