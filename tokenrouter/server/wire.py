"""Answers in OpenAI's JSON, whole or in chunks: chat and completions differ in names only."""
from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from tokenrouter.core import Logprobs
from tokenrouter.server.answer import Answer, Piece
from tokenrouter.server.text import INCOMPLETE, decode


class Wire(ABC):
    """Of one HTTP request: `id`, `model` and the kind of object are the same on all that goes out."""

    kind: str
    chunk_kind: str
    prefix: str

    def __init__(self, request_id: str, model: str, tokenizer: PreTrainedTokenizerBase, answers: Sequence[Answer], *,
                 routing: bool) -> None:
        self.id, self.model, self._tokenizer, self._answers = f"{self.prefix}-{request_id}", model, tokenizer, answers
        self._routing = routing
        self._created = int(time.time())

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """`pieces[i]`: all of answer i."""
        choices = []
        for index, piece in enumerate(pieces):
            answer = self._answers[index]
            choices.append({
                "index": index, **self.content(index, piece), "logprobs": self.logprobs(piece, answer),
                "finish_reason": piece.finish, "stop_reason": piece.stop_reason, "routing": self.routing(piece, answer),
            })
        return {**self._head(self.kind), "choices": choices, "usage": self.usage()}

    def chunk(self, index: int, piece: Piece, *, first: bool, usage: bool) -> dict[str, Any] | None:
        """None where there is nothing that a client would see."""
        answer = self._answers[index]
        if not (piece.text or piece.finish or piece.logprobs or (self._routing and piece.token_ids)):
            return None
        choice: dict[str, Any] = {
            "index": index, **self.delta(index, piece, first), "logprobs": self.logprobs(piece, answer),
            "finish_reason": piece.finish,
        }
        if piece.finish:
            choice["stop_reason"] = piece.stop_reason
        if self._routing or piece.finish:
            choice["routing"] = self.routing(piece, answer)
        chunk = {**self._head(self.chunk_kind), "choices": [choice]}
        return {**chunk, "usage": self.usage()} if usage else chunk

    def usage_chunk(self) -> dict[str, Any]:
        return {**self._head(self.chunk_kind), "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Each prompt counts once, however many answers it gets."""
        prompts = {id(answer.job.prompt_ids): len(answer.job.prompt_ids) for answer in self._answers}
        read, written = sum(prompts.values()), sum(answer.num_tokens for answer in self._answers)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def routing(self, piece: Piece, answer: Answer) -> dict[str, Any]:
        """`token_models[t]` is an index into `models`, `signals[t]` what token t was routed by; counts and seed on the
        last piece."""
        found: dict[str, Any] = {}
        if self._routing:
            found = {"token_ids": piece.token_ids, "token_models": piece.roles, "signals": piece.signals}
        if piece.finish and answer.end is not None:
            found |= {"models": list(answer.job.route.algorithm.roles), "handoffs": answer.end.handoffs,
                      "discarded": answer.end.discarded, "seed": answer.job.sampling.seed}
        return found

    @abstractmethod
    def content(self, index: int, piece: Piece) -> dict[str, Any]: ...

    @abstractmethod
    def delta(self, index: int, piece: Piece, first: bool) -> dict[str, Any]: ...

    @abstractmethod
    def logprobs(self, piece: Piece, answer: Answer) -> dict[str, Any] | None: ...

    def token(self, token_id: int) -> str:
        """Its text; in the vocabulary's own spelling where that is no whole character."""
        text = decode(self._tokenizer, [token_id])
        return text if INCOMPLETE not in text else str(self._tokenizer.convert_ids_to_tokens(token_id))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self.model}


class ChatWire(Wire):
    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def content(self, index: int, piece: Piece) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": piece.text, "refusal": None}}

    def delta(self, index: int, piece: Piece, first: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if first else {}
        return {"delta": {**role, "content": piece.text} if piece.text or first or not piece.finish else role}

    def logprobs(self, piece: Piece, answer: Answer) -> dict[str, Any] | None:
        if answer.job.sampling.logprobs < 0:
            return None
        return {"content": [self._entry(t, told) for t, told in zip(piece.token_ids, piece.logprobs, strict=True)],
                "refusal": None}

    def _entry(self, token_id: int, told: Logprobs) -> dict[str, Any]:
        top = [self._named(i, value) for i, value in zip(told.top_ids, told.top, strict=True)]
        return {**self._named(token_id, told.own), "top_logprobs": top}

    def _named(self, token_id: int, value: float) -> dict[str, Any]:
        text = decode(self._tokenizer, [token_id])
        data = None if INCOMPLETE in text else list(text.encode())
        return {"token": self.token(token_id), "logprob": value, "bytes": data}


class CompletionWire(Wire):
    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, *args: Any, echo: Sequence[str] = (), **more: Any) -> None:
        """`echo[i]`: the text that answer i begins with."""
        super().__init__(*args, **more)
        self._echo = echo
        self._told: Counter[int] = Counter()  # characters of the tokens told so far, by the seed of the answer

    def content(self, index: int, piece: Piece) -> dict[str, Any]:
        return {"text": (self._echo[index] if self._echo else "") + piece.text}

    def delta(self, index: int, piece: Piece, first: bool) -> dict[str, Any]:
        return {"text": (self._echo[index] if first and self._echo else "") + piece.text}

    def logprobs(self, piece: Piece, answer: Answer) -> dict[str, Any] | None:
        if answer.job.sampling.logprobs < 0:
            return None
        tokens = [self.token(t) for t in piece.token_ids]
        offsets = []
        for text in tokens:
            offsets.append(self._told[answer.job.sampling.seed])
            self._told[answer.job.sampling.seed] += len(text)
        return {
            "tokens": tokens, "token_logprobs": [told.own for told in piece.logprobs], "text_offset": offsets,
            "top_logprobs": [{self.token(i): value for i, value in zip(told.top_ids, told.top, strict=True)}
                             for told in piece.logprobs],
        }
