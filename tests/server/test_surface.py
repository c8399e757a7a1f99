"""The routes as OpenAI's clients use them, over real HTTP."""
from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.local import EOS, NEVER_ENDS, LocalServer, next_token
from tests.toy import TossKeeper, TossRouter

PROMPT = [5, 6, 7]


def stream(local: LocalServer, path: str, **body: Any) -> list[dict[str, Any]]:
    with local.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def complete(local: LocalServer, **body: Any) -> dict[str, Any]:
    response = local.client.post("/v1/completions", json={"prompt": PROMPT, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def truth(prompt: list[int], max_tokens: int) -> tuple[list[int], list[int]]:
    """What the toy algorithm comes to: token ids, and the role that wrote each."""
    routers = [TossRouter(), TossKeeper()]
    for role, router in enumerate(routers):
        router.roles, router.role = ("m0", "m1"), role
    ids, authors, role = list(prompt), [], 0
    while len(authors) < max_tokens and ids[-1] != EOS:
        token = next_token(role, ids)
        leaves = routers[role].choose([*ids, token]) != 0
        if not leaves or role == 1:
            ids.append(token)
            authors.append(role)
        if leaves:
            role = 1 - role
    return ids[len(prompt):], authors


def test_each_token_comes_with_the_signal_that_it_was_routed_by(local: LocalServer):
    (choice,) = complete(local, model="entropy", prompt=[NEVER_ENDS, 4], max_tokens=60, return_routing=True,
                         routing={"threshold": 0.1})["choices"]
    models, signals = choice["routing"]["token_models"], choice["routing"]["signals"]
    assert set(models) == {0, 1} and [int(signal > 0.1) for signal in signals] == models


@pytest.mark.parametrize("prompt", [[5, 6, 7], [9], [NEVER_ENDS, 4]])
def test_a_completion_is_what_the_models_write(local: LocalServer, prompt: list[int]):
    ids, authors = truth(prompt, 80)
    answer = complete(local, prompt=prompt, max_tokens=80, return_routing=True)
    (choice,) = answer["choices"]
    assert choice["routing"]["token_ids"] == ids and choice["routing"]["token_models"] == authors
    assert choice["routing"]["models"] == ["m0", "m1"]
    assert choice["text"] == local.client.post("/detokenize", json={
        "tokens": [i for i in ids if i != EOS]}).json()["prompt"]
    assert choice["finish_reason"] == ("stop" if ids[-1] == EOS else "length")
    assert answer["usage"] == {
        "prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
    assert answer["model"] == "toy" and answer["object"] == "text_completion"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_is_the_answer_in_pieces(local: LocalServer, path: str):
    body = {"max_tokens": 60, "n": 2, "seed": 3, "logprobs": 1 if "chat" not in path else True,
            **({"messages": [{"role": "user", "content": "5 + 6"}]} if "chat" in path else {"prompt": PROMPT})}
    whole = local.client.post(path, json=body).json()
    chunks = stream(local, path, **body, stream_options={"include_usage": True})
    *chunks, usage = chunks
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    for index, choice in enumerate(whole["choices"]):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert all("usage" not in chunk for chunk in chunks)
        if "chat" in path:
            assert own[0]["delta"]["role"] == "assistant" and "role" not in own[1]["delta"]
            assert "".join(c["delta"].get("content", "") for c in own) == choice["message"]["content"]
            told = [entry for c in own for entry in c["logprobs"]["content"]]
            assert told == choice["logprobs"]["content"]
        else:
            assert "".join(c["text"] for c in own) == choice["text"]
            for field, values in choice["logprobs"].items():
                assert [value for c in own for value in c["logprobs"][field]] == values
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]


def test_no_usage_and_no_empty_first_chunk_unasked(local: LocalServer):
    chunks = stream(local, "/v1/chat/completions", messages=[{"role": "user", "content": "1"}], max_tokens=30)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    assert chunks[0]["choices"][0]["delta"]["content"]


def test_continuous_usage_grows_to_the_whole(local: LocalServer):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(local, "/v1/completions", prompt=PROMPT, max_tokens=30, ignore_eos=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 30


def test_models_select_routes_and_all_are_served_at_once(local: LocalServer):
    names = [model["id"] for model in local.client.get("/v1/models").json()["data"]]
    assert names == ["toy", "entropy", "entropy@0.25", "entropy@0.5", "entropy@0.75", "slm_only", "llm_only"]
    for name, model in (("slm_only", 0), ("llm_only", 1)):
        answer = complete(local, model=name, max_tokens=20, ignore_eos=True, return_routing=True)
        ids = list(PROMPT)
        for _ in range(20):
            ids.append(next_token(model, ids))
        assert answer["choices"][0]["routing"]["token_ids"] == ids[3:]
    for threshold, authors in (("always", {1}), ("never", {0})):
        answer = complete(local, model="entropy", routing={"threshold": threshold}, return_routing=True)
        assert set(answer["choices"][0]["routing"]["token_models"]) == authors
    assert local.client.get("/v1/models/entropy@0.5").json()["params"] == {"threshold": 0.5}


def test_prompts_of_every_form(local: LocalServer):
    text = "what is 12 + 5?"
    ids = local.client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    single = complete(local, prompt=text)["choices"][0]["text"]
    assert complete(local, prompt=ids)["choices"][0]["text"] == single
    for prompts in ([text, "1"], [ids, [7, 8]]):
        choices = complete(local, prompt=prompts)["choices"]
        assert [c["index"] for c in choices] == [0, 1] and choices[0]["text"] == single
    assert complete(local, prompt=text, echo=True)["choices"][0]["text"] == text + single


def test_parts_of_text_are_one_text(local: LocalServer):
    def answer(content: Any) -> Any:
        body = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 9, "stop": None}
        return local.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]

    assert answer("a b c") == answer([{"type": "text", "text": "a b"}, {"type": "text", "text": " c"}])


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_are_found_across_tokens_and_models(local: LocalServer, include: bool):
    full = complete(local, prompt=[NEVER_ENDS, 1], max_tokens=60, return_routing=True)["choices"][0]
    text = full["text"]
    start = next(i for i in range(10, 50) if text.find(text[i : i + 4]) == i and "\ufffd" not in text[i : i + 4])
    stop = text[start : start + 4]
    answer = complete(local, prompt=[NEVER_ENDS, 1], max_tokens=60, stop=["never there", stop], return_routing=True,
                      include_stop_str_in_output=include)
    choice, count = answer["choices"][0], answer["usage"]["completion_tokens"]
    assert choice["text"] == text[: start + 4 * include]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert count == len(choice["routing"]["token_ids"]) < 60
    assert choice["routing"]["token_ids"] == full["routing"]["token_ids"][:count]
    chunks = stream(local, "/v1/completions", prompt=[NEVER_ENDS, 1], max_tokens=60, stop=[stop],
                    include_stop_str_in_output=include)
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]


def test_stop_tokens_min_tokens_and_penalties(local: LocalServer):
    full = complete(local, prompt=[NEVER_ENDS, 2], max_tokens=40, return_routing=True)["choices"][0]
    ids = full["routing"]["token_ids"]
    stopped = complete(local, prompt=[NEVER_ENDS, 2], max_tokens=40, stop_token_ids=[ids[9]], return_routing=True)
    choice = stopped["choices"][0]
    count = ids.index(ids[9]) + 1
    assert choice["routing"]["token_ids"] == ids[:count] and choice["stop_reason"] == ids[9]
    later = complete(local, prompt=[NEVER_ENDS, 2], max_tokens=40, stop_token_ids=[ids[9]], min_tokens=30,
                     return_routing=True)["choices"][0]["routing"]["token_ids"]
    assert len(later) >= 30 and ids[9] not in later[:30]
    plain = complete(local, max_tokens=200, temperature=3.0, seed=1, ignore_eos=True, return_routing=True)
    varied = complete(local, max_tokens=200, temperature=3.0, seed=1, ignore_eos=True, return_routing=True,
                      presence_penalty=2.0, frequency_penalty=2.0)
    distinct = [len(set(a["choices"][0]["routing"]["token_ids"])) for a in (plain, varied)]
    assert distinct[1] > distinct[0]


def test_seeds_repeat_and_are_reported(local: LocalServer):
    body = {"temperature": 2.0, "max_tokens": 20, "ignore_eos": True}
    first = complete(local, **body)["choices"][0]
    again = complete(local, **body, seed=first["routing"]["seed"])["choices"][0]
    assert again["text"] == first["text"]
    assert len({c["text"] for c in complete(local, **body, n=3, seed=4)["choices"]}) == 3


def test_logprobs_are_those_of_the_committing_model(local: LocalServer):
    answer = complete(local, prompt=[NEVER_ENDS, 3], max_tokens=12, logprobs=2)["choices"][0]["logprobs"]
    assert all(len(top) == 2 for top in answer["top_logprobs"])
    for own, token, top in zip(answer["token_logprobs"], answer["tokens"], answer["top_logprobs"], strict=True):
        assert own <= 0 and top[token] == own == max(top.values()), "greedy: each token is the most likely one"
    assert answer["text_offset"][:2] == [0, len(answer["tokens"][0])]


def test_health_metrics_and_info(local: LocalServer):
    complete(local)
    assert local.client.get("/health").status_code == local.client.get("/health_generate").status_code == 200
    assert local.client.head("/metrics").status_code == 200
    text = local.client.get("/metrics").text
    for name in ("sglang:generation_tokens_total", "sglang:time_to_first_token_seconds_bucket",
                 'tokenrouter:tokens_total{model_name="toy",role="m0"}', "tokenrouter:handoffs_total"):
        assert name in text
    info = local.client.get("/server_info").json()
    assert [model["name"] for model in info["models"]] == ["m0", "m1"] and info["context_length"] == 2000
    assert local.client.post("/flush_cache").status_code == 200
    assert local.client.get("/").json()["openapi"] == "/openapi.json"
    paths = local.client.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/models/{model}", "/abort_request"} <= set(paths)


def test_tokenize_and_back(local: LocalServer):
    for text in ("3 + 4 = 7", "", "ünï → 漢"):
        found = local.client.post("/tokenize", json={"prompt": text}).json()
        assert found["count"] == len(found["tokens"])
        assert local.client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}
    chat = local.client.post("/tokenize", json={"messages": [{"role": "user", "content": "1"}]}).json()["tokens"]
    assert local.client.post("/detokenize", json={"tokens": chat}).json()["prompt"].endswith("<|im_start|>assistant\n")
