"""The HTTP application: a table of routes, and what each of them does."""
from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path
from transformers import PreTrainedTokenizerBase

from tokenrouter.server import protocol as p
from tokenrouter.server.answer import Answer
from tokenrouter.server.dispatch import Dispatcher
from tokenrouter.server.errors import ApiError
from tokenrouter.server.frontend import Frontend
from tokenrouter.server.generate import Generator, json_response
from tokenrouter.server.guard import Keys, guarded, http_error, read_body
from tokenrouter.server.metrics import Metrics
from tokenrouter.server.openapi import Endpoint, document
from tokenrouter.server.prepare import Preparer
from tokenrouter.server.routes import Route, Routes
from tokenrouter.server.settings import ServeConfig
from tokenrouter.server.wire import ChatWire, CompletionWire, Wire


class Server:
    """The application over a running cluster's front end. `app` is what an ASGI server runs."""

    def __init__(self, config: ServeConfig, frontend: Frontend, tokenizer: PreTrainedTokenizerBase) -> None:
        settings = config.server
        self.config, self.frontend, self.draining = config, frontend, False
        self.metrics = Metrics()
        self.routes = Routes(frontend.algorithms, settings.thresholds)
        self.dispatcher = Dispatcher(frontend, settings.max_requests, settings.retry_after_s)
        self._tokenizer = tokenizer
        self._preparer = Preparer(tokenizer, self.routes, config.sampling, frontend.context_length,
                                  min(settings.max_choices, settings.max_requests))
        self._generator = Generator(self.dispatcher, tokenizer, self.metrics, settings.timeout_s)
        self._limit = int(settings.max_body_mb * 2**20)
        self._reports: list[dict[str, Any]] = []
        self._decoders: dict[type, Callable[[bytes], Any]] = {}
        keys = Keys(settings.api_keys, settings.admin_key)
        self.endpoints = self._table()
        self.app = Starlette(
            routes=[Path(e.path, guarded(e.handler, keys, self.metrics, admin=e.access == "admin",
                                         open_to_all=e.access == "open"), methods=list(e.methods))
                    for e in self.endpoints],
            exception_handlers={HTTPException: http_error, Exception: http_error}, lifespan=self._lifespan)

    def _table(self) -> list[Endpoint]:
        post, get, any_of = ("POST",), ("GET",), ("GET", "POST")
        return [
            Endpoint("/", get, self._root, "Where to look", "open"),
            Endpoint("/v1/chat/completions", post, self._chat, "Answer a conversation", body=p.ChatRequest),
            Endpoint("/v1/completions", post, self._complete, "Continue a text", body=p.CompletionRequest),
            Endpoint("/v1/models", get, self._models, "The models: algorithms with their thresholds"),
            Endpoint("/v1/models/{model:path}", get, self._model, "One of the models"),
            Endpoint("/tokenize", post, self._tokenize, "Text or conversation to token ids", body=p.TokenizeRequest),
            Endpoint("/detokenize", post, self._detokenize, "Token ids to text", body=p.DetokenizeRequest),
            Endpoint("/health", get, self._health, "200 while requests are taken", "open"),
            Endpoint("/health_generate", get, self._health_generate, "200 if a token can be generated"),
            Endpoint("/metrics", get, self._metrics, "For Prometheus", "open"),
            Endpoint("/openapi.json", get, self._openapi, "This document", "open"),
            Endpoint("/server_info", get, self._server_info, "Models, algorithms, load"),
            Endpoint("/stats", get, self._stats, "Raw reports of the subservers", "admin"),
            Endpoint("/reset_stats", post, self._reset_stats, "Begin to measure anew", "admin"),
            Endpoint("/flush_cache", any_of, self._flush_cache, "Drop the prefix caches", "admin"),
            Endpoint("/abort_request", post, self._abort, "End answers early", "admin", p.AbortRequest),
        ]

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.dispatcher.run())]
        if self.config.server.observe_s is not None:
            tasks.append(asyncio.create_task(self._observe(self.config.server.observe_s)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _observe(self, every_s: float) -> None:
        """Take what the subservers have measured, again and again, so that they need not keep it."""
        while True:
            await asyncio.sleep(every_s)
            try:
                self._reports = await self.dispatcher.ask("take_stats")
            except ApiError:
                continue
            models = zip(self.frontend.spec.models, self._reports, self.frontend.restarts, strict=True)
            for model, report, restarts in models:
                self.metrics.subserver(model.name, report | {"restarts": restarts})

    async def _read(self, request: Request, kind: type[p.Body]) -> p.Body:
        data = await read_body(request, self._limit)
        decode = self._decoders.setdefault(kind, p.decoder(kind))
        body: p.Body = decode(data)
        return body

    # Generation.

    async def _chat(self, request: Request) -> Response:
        body = await self._read(request, p.ChatRequest)
        jobs = await self._preparer.chat(body)

        def wire(answers: list[Answer]) -> Wire:
            return ChatWire(uuid.uuid4().hex, jobs[0].route.id, self._tokenizer, answers,
                            routing=bool(body.return_routing))

        return await self._generator.respond(request, body, jobs, wire)

    async def _complete(self, request: Request) -> Response:
        body = await self._read(request, p.CompletionRequest)
        jobs = await self._preparer.completion(body)
        echo = [await self._preparer.decode(job.prompt_ids) for job in jobs] if body.echo else []

        def wire(answers: list[Answer]) -> Wire:
            return CompletionWire(uuid.uuid4().hex, jobs[0].route.id, self._tokenizer, answers,
                                  routing=bool(body.return_routing), echo=echo)

        return await self._generator.respond(request, body, jobs, wire)

    # Words and tokens.

    async def _tokenize(self, request: Request) -> Response:
        body = await self._read(request, p.TokenizeRequest)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "prompt, messages: allowed is one of the two", param="prompt")
        if body.messages is not None:
            text = self._preparer.render(body.messages, generation_prompt=body.add_generation_prompt is not False)
            ids = await self._preparer.encode(text, "messages", special=False, limited=False)
        else:
            ids = await self._preparer.encode(body.prompt or "", "prompt", limited=False,
                                              special=body.add_special_tokens is not False)
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": self.frontend.context_length})

    async def _detokenize(self, request: Request) -> Response:
        body = await self._read(request, p.DetokenizeRequest)
        width = len(self._tokenizer)
        if any(token >= width for token in body.tokens):
            raise ApiError(400, f"tokens: {max(body.tokens)}: allowed is below {width}", param="tokens")
        return json_response({"prompt": await self._preparer.decode(body.tokens)})

    # What there is, and how it is.

    async def _root(self, request: Request) -> Response:
        return json_response({"name": "TokenRouter", "models": "/v1/models", "openapi": "/openapi.json"})

    async def _models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._describe(route) for route in self.routes]})

    async def _model(self, request: Request) -> Response:
        return json_response(self._describe(self.routes.find(request.path_params["model"])))

    def _describe(self, route: Route) -> dict[str, Any]:
        algorithm = route.algorithm
        return {"id": route.id, "object": "model", "created": 0, "owned_by": "tokenrouter",
                "max_model_len": self.frontend.context_length, "algorithm": algorithm.name,
                "roles": list(algorithm.roles), "params": dict(route.params),
                "takes": {name: param.doc for name, param in algorithm.params.items()}}

    async def _health(self, request: Request) -> Response:
        self.dispatcher.check_alive()
        if self.draining:
            raise ApiError(503, "the server is about to stop", code="draining")
        return Response(status_code=200)

    async def _health_generate(self, request: Request) -> Response:
        body = p.CompletionRequest(prompt=[[0]], max_tokens=1, ignore_eos=True)
        jobs = await self._preparer.completion(body)
        # A server that has all that it takes is healthy: whoever asks would restart it otherwise.
        async with self.dispatcher.submitted(jobs, self.config.server.timeout_s, limited=False) as exchange:
            try:
                async for _ in exchange.events():
                    pass
            except TimeoutError:
                raise ApiError(503, "no token came", code="timeout") from None
        return Response(status_code=200)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return json_response(document(self.endpoints))

    async def _server_info(self, request: Request) -> Response:
        loaded = zip(self.frontend.spec.models, self.frontend.models, self.frontend.capacities, strict=True)
        models = [{**msgspec.to_builtins(info), "name": spec.name, "kv_tokens": room} for spec, info, room in loaded]
        return json_response({
            "models": models, "routes": [route.id for route in self.routes],
            "context_length": self.frontend.context_length, "open_requests": self.frontend.num_open,
            "batching": msgspec.to_builtins(self.config.batching), "subservers": self._reports})

    # Administration.

    async def _stats(self, request: Request) -> Response:
        return json_response(await self.dispatcher.ask("stats"))

    async def _reset_stats(self, request: Request) -> Response:
        await self.dispatcher.ask("reset_stats")
        return json_response({})

    async def _flush_cache(self, request: Request) -> Response:
        await self.dispatcher.ask("flush_cache")
        return json_response({})

    async def _abort(self, request: Request) -> Response:
        body = await self._read(request, p.AbortRequest)
        if body.abort_all:
            self.dispatcher.abort_all()
        elif body.rid is not None:
            for rid in self._generator.running.get(body.rid, []):
                self.dispatcher.abort(rid)
        else:
            raise ApiError(400, "rid: missing", param="rid")
        return json_response({})
