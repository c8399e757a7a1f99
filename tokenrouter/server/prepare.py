"""From what a client sent to what a subserver needs."""
from __future__ import annotations

import asyncio
import copy
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from tokenrouter.core import InputError, SamplingParams
from tokenrouter.server.errors import ApiError
from tokenrouter.server.protocol import ChatRequest, CompletionRequest, Generation, Message
from tokenrouter.server.routes import Route, Routes
from tokenrouter.server.settings import SamplingDefaults
from tokenrouter.server.text import decode

COMPLETION_TOKENS = 16  # what OpenAI's completions give where max_tokens is not said
_LONG_TEXT = 20_000  # characters from which a text is tokenized beside the event loop
_MANY_TOKENS = 5_000  # the same of tokens whose text is wanted
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One answer to be written."""

    prompt_ids: list[int]
    sampling: SamplingParams
    route: Route
    params: Mapping[str, Any]


class Preparer:
    """`context_length`: the most tokens that prompt and answer may have together."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, routes: Routes, defaults: SamplingDefaults,
                 context_length: int, max_choices: int) -> None:
        self.tokenizer, self.routes, self.context_length = tokenizer, routes, context_length
        self._defaults, self._max_choices = defaults, max_choices
        self._longest = max(len(token) for token in tokenizer.get_vocab())
        self._aside = copy.deepcopy(tokenizer)  # for long texts: a tokenizer serves one thread at a time
        self._long = asyncio.Lock()

    async def chat(self, request: ChatRequest) -> list[Job]:
        request.check_supported()
        ids = await self.encode(self.render(request.messages), "messages", special=False)
        alternatives = (request.top_logprobs or 0) if request.logprobs else -1
        limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
        if limit is None:
            limit = max(1, self.context_length - len(ids))
        return self._jobs(request, [ids], limit, alternatives)

    async def completion(self, request: CompletionRequest) -> list[Job]:
        request.check_supported()
        self._check_choices(request, len(request.prompts))
        prompts = [await self.encode(p, "prompt") if isinstance(p, str) else p for p in request.prompts]
        limit = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
        return self._jobs(request, prompts, limit, -1 if request.logprobs is None else request.logprobs)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = True) -> str:
        """The text that the chat template makes of a conversation."""
        plain = [message.plain(i) for i, message in enumerate(messages)]
        try:
            return str(self.tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=generation_prompt))
        except Exception as error:  # a template may raise whatever it likes about roles and their order
            raise ApiError(400, f"messages: refused by the chat template: {error}", param="messages") from None

    async def encode(self, text: str, field: str, *, special: bool = True, limited: bool = True) -> list[int]:
        """Token ids. `limited`: a text that must be longer than the context is refused without a look at it."""
        if limited and len(text) > self.context_length * self._longest:
            raise ApiError(400, f"{field}: {len(text)} characters are more than the {self.context_length} tokens of "
                           "the context can hold", param=field, code="context_length_exceeded")
        def encoded(tokenizer: PreTrainedTokenizerBase) -> list[int]:
            return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

        return await self._beside(encoded, len(text) >= _LONG_TEXT)

    async def decode(self, ids: list[int]) -> str:
        """The text of token ids, special ones included."""
        return await self._beside(lambda tokenizer: decode(tokenizer, ids), len(ids) >= _MANY_TOKENS)

    async def _beside(self, work: Callable[[PreTrainedTokenizerBase], T], long: bool) -> T:
        """`work` done at once or, if it is long, beside the event loop, where only other long ones wait for it."""
        if not long:
            return work(self.tokenizer)
        async with self._long:
            return await asyncio.to_thread(work, self._aside)

    def _check_choices(self, request: Generation, prompts: int) -> None:
        if (request.n or 1) * prompts > self._max_choices:
            raise ApiError(400, f"n={request.n or 1} with {prompts} prompt(s): allowed are at most {self._max_choices} "
                           "answers a request (server.max_choices, server.max_requests)", param="n")

    def _jobs(self, request: Generation, prompts: Sequence[list[int]], limit: int, logprobs: int) -> list[Job]:
        self._check_choices(request, len(prompts))
        route = self.routes.find(request.model)
        params = {**route.params, **(request.routing or {})}
        base = secrets.randbits(63) if request.seed is None else request.seed
        seeds = (choice_seed(base, i) for i in range(len(prompts) * (request.n or 1)))
        try:
            route.algorithm.parse(params)
            jobs = [Job(ids, self._sampling(request, next(seeds), limit, logprobs), route, params)
                    for ids in prompts for _ in range(request.n or 1)]
            for job in jobs:
                job.sampling.check()
        except InputError as error:
            raise bad_input(error) from None
        for job in jobs:
            length = len(job.prompt_ids)
            if length == 0:
                raise ApiError(400, "prompt: allowed is one token or more", param="prompt")
            if length + limit > self.context_length:
                raise ApiError(400, f"the prompt has {length} tokens and max_tokens is {limit}: allowed is a sum of at "
                               f"most {self.context_length}", param="max_tokens", code="context_length_exceeded")
        return jobs

    def _sampling(self, request: Generation, seed: int, limit: int, logprobs: int) -> SamplingParams:
        defaults = self._defaults

        def given(value: float | None, default: float) -> float:
            return default if value is None else value

        top_k = defaults.top_k if request.top_k is None else max(request.top_k, 0)  # -1 is off, as in vLLM
        return SamplingParams(
            seed=seed, max_tokens=limit, logprobs=logprobs, signals=bool(request.return_routing), top_k=top_k,
            min_tokens=request.min_tokens or 0,
            temperature=given(request.temperature, defaults.temperature), top_p=given(request.top_p, defaults.top_p),
            min_p=given(request.min_p, defaults.min_p), presence_penalty=given(request.presence_penalty, 0.0),
            frequency_penalty=given(request.frequency_penalty, 0.0),
            repetition_penalty=given(request.repetition_penalty, 1.0),
            stop_token_ids=tuple(request.stop_token_ids or ()), ignore_eos=bool(request.ignore_eos))


def choice_seed(seed: int, index: int) -> int:
    """The seed of answer `index`; the first one's is the request's own."""
    if index == 0:
        return seed % 2**63
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest(), "big") >> 1


def bad_input(error: InputError) -> ApiError:
    """The core's one-line message, with the names that clients know; the field is what stands before `=`."""
    message = " ".join(str(error).removeprefix("sampling.").splitlines())
    if message.startswith("params."):
        message = "routing." + message.removeprefix("params.")
    return ApiError(400, message, param=message.partition("=")[0].partition(":")[0])
