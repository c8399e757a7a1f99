"""Servers that a user would run, one a model, for standard serving: how each is started, asked, and understood.

SGLang (0.5.21): POST /generate gives, of one token, the log-probabilities of the k likeliest ids and the hidden state
behind the final norm. vLLM (0.32): POST /v1/completions gives log-probabilities alone. Both are asked greedily, for one
token after the whole prefix in token ids, so that what they tell is the model's own distribution at temperature 1; the
token that they chose is not looked at, as all systems draw theirs with tokenrouter/sampling.py.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from tokenrouter.cluster.placement import GB
from tokenrouter.cluster.spec import EngineSpec, ModelSpec
from tokenrouter.core import InputError
from tokenrouter.engine.memory import footprint


class Told(NamedTuple):
    """What a server says of the next token: the likeliest `ids` and their `logprobs`, the `hidden` state [H] if it was
    asked for and given, how many tokens were `computed`, and `seconds` in the server if it tells them."""

    ids: list[int]
    logprobs: list[float]
    hidden: list[float] | None
    computed: int
    seconds: float | None


class Sizes(NamedTuple):
    """In tokens: KV of a server, the longest sequence of its model, and its vocabulary."""

    capacity: int
    context: int
    vocabulary: int


class Launch(NamedTuple):
    """`arguments` of the Python that has the server, and what is to be in its environment."""

    arguments: list[str]
    environment: dict[str, str]


class Sessions:
    """SGLang's streaming sessions: a call has what comes behind its session's ids, whose KV stays until it is closed.

    What a call generates would come before the next one's ids, and cannot be taken back there. So each asks for no
    token at all: the server computes the same, and tells of the token that it does not choose.
    """

    def arguments(self, engine: EngineSpec) -> dict[str, Any]:
        """What the server is started with."""
        # Each session has one of the places of running requests, and each of a batch's calls finds one free.
        return {"enable_streaming_session": True, "max_running_requests": 2 * engine.max_batch}

    def opening(self, name: str) -> tuple[str, dict[str, Any]]:
        """The path to which what is posted."""
        return "/open_session", {"session_id": name, "streaming": True, "capacity_of_str_len": 0}  # the last has no use

    def closing(self, name: str) -> tuple[str, dict[str, Any]]:
        return "/close_session", {"session_id": name}

    def body(self, whole: dict[str, Any], name: str) -> dict[str, Any]:
        """Of a call in a session. `whole`: Server.body of the new ids, of which there may be none."""
        return whole | {"session_params": {"id": name},
                        "sampling_params": whole["sampling_params"] | {"max_new_tokens": 0}}


class Server(Protocol):
    name: str
    hidden_states: bool  # whether it can give them
    sessions: Sessions | None  # how it keeps a request's KV from call to call
    path: str  # to which a call is posted

    def launch(self, model: ModelSpec, engine: EngineSpec, sizes: Sizes, port: int, *, hidden: bool,
               core: int | None) -> Launch:
        """`hidden`: whether it is to give hidden states. `core`: where it runs."""

    def body(self, ids: Sequence[int], width: int, *, hidden: bool) -> dict[str, Any]:
        """A call: the next token after `ids`, the log-probabilities of the `width` likeliest."""

    def read(self, answer: bytes) -> Told: ...


class Sglang:
    name = "SGLang"
    hidden_states = True
    sessions: Sessions | None = Sessions()
    path = "/generate"

    def launch(self, model: ModelSpec, engine: EngineSpec, sizes: Sizes, port: int, *, hidden: bool,
               core: int | None) -> Launch:
        options: dict[str, Any] = {
            "model-path": model.path, "revision": model.revision, "dtype": model.dtype, "device": model.device,
            "skip-tokenizer-init": True, "max-total-tokens": sizes.capacity, "max-running-requests": engine.max_batch,
            "chunked-prefill-size": engine.chunk_tokens, "enable-return-hidden-states": hidden, "host": "127.0.0.1",
            "port": port, "log-level": "warning",
        }  # fmt: skip
        if model.device == "cpu":  # what SGLang needs where its own CPU kernels are not installed
            options |= {"attention-backend": "torch_native", "sampling-backend": "pytorch", "grammar-backend": "none",
                        "disable-overlap-schedule": True}
        environment = {"SGLANG_USE_CPU_ENGINE": "1"} if model.device == "cpu" else {}
        return Launch(["-m", "sglang.launch_server", *flags(options)], environment)

    def body(self, ids: Sequence[int], width: int, *, hidden: bool) -> dict[str, Any]:
        return {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
                "return_logprob": True, "top_logprobs_num": width, "return_hidden_states": "last" if hidden else False}

    def read(self, answer: bytes) -> Told:
        meta = msgspec.json.decode(answer, type=_Generated).meta_info
        logprobs, ids, _ = zip(*meta.output_top_logprobs[0], strict=True)
        return Told(list(ids), list(logprobs), meta.hidden_states, meta.prompt_tokens - meta.cached_tokens,
                    meta.e2e_latency)


class _Meta(msgspec.Struct):
    output_top_logprobs: list[list[tuple[float, int, str | None]]]
    prompt_tokens: int
    cached_tokens: int
    e2e_latency: float | None = None
    hidden_states: list[float] | None = None


class _Generated(msgspec.Struct):
    meta_info: _Meta


class Vllm:
    name = "vLLM"
    hidden_states = False
    sessions: Sessions | None = None
    path = "/v1/completions"

    def launch(self, model: ModelSpec, engine: EngineSpec, sizes: Sizes, port: int, *, hidden: bool,
               core: int | None) -> Launch:
        cpu = model.device == "cpu"
        block = 32 if cpu else 16  # the least that its attention takes: whole blocks of a prefix are found again
        options: dict[str, Any] = {
            "model": model.path, "revision": model.revision, "dtype": model.dtype, "served-model-name": "model",
            "enable-prefix-caching": True, "enable-prompt-tokens-details": True, "block-size": block,
            "num-gpu-blocks-override": -(-sizes.capacity // block),
            "max-model-len": min(sizes.context, sizes.capacity), "max-num-seqs": engine.max_batch,
            "max-logprobs": sizes.vocabulary, "host": "127.0.0.1", "port": port, "disable-uvicorn-access-log": True,
            "no-enable-log-requests": True,
        }  # fmt: skip
        environment = {"VLLM_NO_USAGE_STATS": "1"}
        if cpu:
            size = sizes.capacity * footprint(model.path, model.dtype, revision=model.revision).bytes_per_token
            environment["VLLM_CPU_KVCACHE_SPACE"] = str(-(-size // GB))  # GiB; the blocks say what is used
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind" if core is None else str(core)
        return Launch(["-m", "vllm.entrypoints.openai.api_server", *flags(options)], environment)

    def body(self, ids: Sequence[int], width: int, *, hidden: bool) -> dict[str, Any]:
        return {"model": "model", "prompt": ids, "temperature": 0, "max_tokens": 1, "ignore_eos": True,
                "logprobs": width, "return_tokens_as_token_ids": True}

    def read(self, answer: bytes) -> Told:
        completion = msgspec.json.decode(answer, type=_Completion)
        top = completion.choices[0].logprobs.top_logprobs[0]
        details = completion.usage.prompt_tokens_details
        cached = details.cached_tokens if details else 0
        return Told([int(name.removeprefix("token_id:")) for name in top], list(top.values()), None,
                    completion.usage.prompt_tokens - cached, None)


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _Details | None = None


class _Logprobs(msgspec.Struct):
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct):
    logprobs: _Logprobs


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


SERVERS: dict[str, Server] = {"sglang": Sglang(), "vllm": Vllm()}


def flags(options: Mapping[str, Any]) -> list[str]:
    """{"max-batch": 4, "fast": true, "sizes": [1, 2], "slow": false, "x": null} -> --max-batch 4 --fast --sizes 1 2"""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        values = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def server_of(kind: str) -> Server:
    if kind not in SERVERS:
        raise InputError(f"system.options.server={kind!r}: allowed is one of {', '.join(SERVERS)}")
    return SERVERS[kind]
