"""The server's OpenAPI document, from its table of routes and the types that they read."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tokenrouter.server.guard import Handler


@dataclass(frozen=True)
class Endpoint:
    """`access`: who may call it. `body`: what it reads."""

    path: str
    methods: tuple[str, ...]
    handler: Handler
    summary: str
    access: str = "user"  # open, user or admin
    body: type[msgspec.Struct] | None = None


ERROR = {
    "type": "object", "required": ["error"],
    "properties": {"error": {
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {"message": {"type": "string"}, "type": {"type": "string"},
                       "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}},
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    bodies = [endpoint.body for endpoint in endpoints if endpoint.body is not None]
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    schema = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = re.sub(r":\w+}", "}", endpoint.path)
        for method in endpoint.methods:
            operation = paths.setdefault(path, {})[method.lower()] = _operation(endpoint)
            if endpoint.body is not None:
                operation["requestBody"] = {
                    "required": True, "content": {"application/json": {"schema": schema[endpoint.body]}}}
            if names := re.findall(r"{(\w+)}", path):
                operation["parameters"] = [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {
        "openapi": "3.1.0",
        "info": {"title": "TokenRouter", "version": "1", "description": "Token-level routing behind OpenAI's routes."},
        "paths": paths,
        "components": {"schemas": {**components, "Error": ERROR},
                       "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    error = {"description": "What is wrong", "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary, "responses": {"200": {"description": "Done"}, "4XX": error, "5XX": error}}
    if endpoint.access != "open":
        operation["security"] = [{"key": []}, {}]
    return operation
