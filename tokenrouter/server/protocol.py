"""What clients may send: OpenAI's fields, those that vLLM and SGLang add, and `routing`. Unknown fields are ignored."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from tokenrouter.server.errors import ApiError, unsupported

Count = Annotated[int, Meta(ge=0, le=2**31)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31)]
Number = float
Text = Annotated[str, Meta(min_length=1)]


class StreamOptions(Struct, kw_only=True):
    """`include_usage`: a last chunk with token counts; `continuous_usage_stats`: counts so far on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    type: str = "text"


class Generation(Struct, kw_only=True):
    """Fields of both generating routes. None: as if it were not there.

    `routing`: the algorithm's parameters for this request, such as {"threshold": 0.5}. `return_routing`: answer with
    each token's id and the index of the model that wrote it.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    seed: Seed | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=64)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    routing: dict[str, Any] | None = None
    return_routing: bool | None = None
    # Refused unless they ask for nothing.
    response_format: ResponseFormat | None = None
    logit_bias: dict[str, Any] | None = None

    def check_supported(self) -> None:
        if self.response_format is not None and self.response_format.type != "text":
            raise unsupported("response_format", f"{self.response_format.type!r}; allowed is text")
        if self.logit_bias:
            raise unsupported("logit_bias", "no token's logit can be shifted by itself")

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class Part(Struct, kw_only=True):
    type: str
    text: str | None = None


class Message(Struct, kw_only=True):
    role: Text
    content: str | list[Part] | None = None

    def plain(self, index: int) -> dict[str, str]:
        """As the chat template takes it; parts of text are joined."""
        if isinstance(self.content, list):
            for part in self.content:
                if part.type != "text" or part.text is None:
                    raise unsupported(f"messages[{index}].content", f"a part of type {part.type!r}; allowed is text")
            content = "".join(str(part.text) for part in self.content)
        else:
            content = self.content or ""
        return {"role": self.role, "content": content}


class ChatRequest(Generation, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None

    def check_supported(self) -> None:
        super().check_supported()
        if self.tools or self.functions or self.tool_choice not in (None, "none", "auto"):
            raise unsupported("tools" if not self.functions else "functions", "the models call no tools")
        if any(modality != "text" for modality in self.modalities or []):
            raise unsupported("modalities", f"{self.modalities}; allowed is text")
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs: allowed with logprobs=true only", param="top_logprobs")


class CompletionRequest(Generation, kw_only=True):
    """`prompt`: a text, token ids, or a list of either."""

    prompt: str | Annotated[list[TokenId | str | list[TokenId]], Meta(min_length=1)]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(item) for item in self.prompt}
        if len(kinds) > 1:
            raise ApiError(400, "prompt: allowed is a list of one kind: texts, token ids, or lists of token ids",
                           param="prompt")
        return [self.prompt] if kinds == {int} else self.prompt  # type: ignore[return-value, list-item]

    def check_supported(self) -> None:
        super().check_supported()
        if self.echo and self.logprobs is not None:
            raise unsupported("echo", "with logprobs: which model would score the prompt is undefined where tokens are "
                              "routed")
        if self.best_of not in (None, 1, self.n or 1):
            raise unsupported("best_of", "allowed is n")
        if self.suffix:
            raise unsupported("suffix", "the models only continue a text")


class TokenizeRequest(Struct, kw_only=True):
    """Either `prompt` or `messages`."""

    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    tokens: list[TokenId]


class AbortRequest(Struct, kw_only=True):
    """`rid`: the id of an answer, as its client sees it; or `abort_all`."""

    rid: str | None = None
    abort_all: bool | None = None


Body = TypeVar("Body", bound=Struct)


def decoder(kind: type[Body]) -> Callable[[bytes], Body]:
    """Bytes of JSON -> `kind`; ApiError 400 for whatever is wrong with them."""
    decode = msgspec.json.Decoder(kind).decode

    def checked(data: bytes) -> Body:
        try:
            return decode(data)
        except msgspec.ValidationError as error:
            said, _, place = str(error).partition(" - at `$")
            field = place.rstrip("`").lstrip(".")
            name = re.search(r"missing required field `(.*)`", said)
            raise ApiError(400, f"{field}: {said}" if field else said, param=field or (name[1] if name else None)
                           ) from None
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
        except RecursionError:
            raise ApiError(400, "the body is nested too deep", code="invalid_json") from None

    return checked
