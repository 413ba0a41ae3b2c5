"""Builds `/openapi.json`: the metadata of the routes, and for all of them authentication, error responses and operation ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.protocols.model_apis.vendor_requests import Vendor, documented_vendors, error_body

SUMMARY = "Agent CLIs on this machine, as protocol agents."
TAGS = {
    "AAP v1": "The Agent Application Protocol, version 1: sessions with an agent, turn by turn.",
    "AAP v1 at the root": "The same version, for clients without a base URL.",
    "AAP v2": "Version 2: as version 1, with histories on a path of their own and settings in the list.",
    "AAP v3": "Version 3: sessions are created without a turn, and turns have a path of their own.",
    "OutputEvent gateway": "Runs one task and streams its events.",
    "OpenAI: chat completions": "The API of that name: the agents are the models.",
    "Anthropic: messages": "Anthropic's Messages API, over the same sessions.",
    "OpenAI and Anthropic: models": "The agents, and the models of each, as models of the vendors' APIs.",
    "OpenAI: responses": "OpenAI's Responses: answers of agents by ids, also in the background, and conversations of them.",
    "ACP": "The Agent Client Protocol over streamable HTTP; at the same path over WebSocket.",
    "operations": "The gateway's own endpoints: drivers, live agents, keys, rules, audit, diagnosis, health and metrics.",
}
KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "`portico key` prints the key. A gateway that was started with `--no-auth` needs none.",
}
ERROR = {
    "type": "object",
    "title": "ErrorResponse",
    "description": "Every error: a text for people, what was wrong and what to do.",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
_VENDOR_ERRORS: dict[Vendor, dict[str, Any]] = {
    "openai": {
        "type": "object",
        "title": "OpenAIErrorResponse",
        "description": "Every error of OpenAI's APIs. `param` is the field that is wrong.",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
                "required": ["message", "type", "param", "code"],
            }
        },
        "required": ["error"],
    },
    "anthropic": {
        "type": "object",
        "title": "AnthropicErrorResponse",
        "description": "Every error of Anthropic's API.",
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
                "required": ["type", "message"],
            },
        },
        "required": ["type", "error"],
    },
}
RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}
ERRORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "400": ("The request is invalid. Nothing has changed.", "messages: empty; send one user message", {}),
    "401": (
        "No key, or an unknown one.",
        "no API key: send 'Authorization: Bearer KEY'; `portico key` prints the key",
        {"WWW-Authenticate": {"schema": {"type": "string"}}},
    ),
    "403": (
        "The Host or the Origin is not allowed, or the key may not do this.",
        "this gateway is not 'example.org'; use its address, or add the name to server.hosts",
        {},
    ),
    "404": ("Nothing has this id.", "there is no session 'sess_x'; GET the list of sessions", {}),
    "409": (
        "Not possible in this state: a turn is running, or the call was answered before. Nothing has changed.",
        "this session is at work on a turn; wait for its turn_stop, then send this again",
        {},
    ),
    "413": ("The body is too large.", "the body is larger than 67108864 bytes (server.max_body); send less at a time", {}),
    "415": ("The body is not JSON.", "the body must be a JSON object, sent with Content-Type: application/json", {}),
    "429": ("All slots for live agents are in use. Nothing has changed.", "all 16 slots for live agents are in use", RETRY),
    "502": ("The run has failed before it has answered anything.", "the model is overloaded", {}),
    "503": ("The agent cannot start here, or the gateway is shutting down.", "agent 'claude' cannot start: no program", {}),
}
"""By status: the description, an example of the text, and the headers."""


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of all routes of an app."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=SUMMARY,
        routes=app.routes,
        servers=[{"url": "/"}],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    used: set[str] = set()
    tags: dict[str, None] = {}
    # The gateway's own comes first, which has no vendor.
    shapes = dict.fromkeys([(), *(documented_vendors(path) for path in document["paths"])])
    for path, operation in _operations(document):
        _add_errors(path, operation)
        operation["operationId"] = _operation_id(path, operation, used)
        tags |= dict.fromkeys(operation.get("tags", ()))
    document["tags"] = [{"name": tag, "description": TAGS.get(tag, tag)} for tag in tags]
    parts = document["components"]
    parts["securitySchemes"] = {"key": KEY}
    parts["responses"] = {
        _error_name(status, vendors): _error_response(status, vendors) for status in ERRORS for vendors in shapes
    }
    # FastAPI's own error format, which this gateway does not use.
    for unused in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(unused, None)
    parts["schemas"]["ErrorResponse"] = ERROR
    parts["schemas"] |= {schema["title"]: schema for schema in _VENDOR_ERRORS.values()}
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _add_errors(path: str, operation: dict[str, Any]) -> None:
    """Add the errors that are possible by the form of an operation. Those that it declares itself are kept."""
    given = [parameter for parameter in operation.get("parameters", ()) if parameter["in"] != "path"]
    possible = ["403"]
    if operation.get("security"):
        possible += ["401"]
    if "{" in path:
        possible += ["404", "503"]
    if given or "requestBody" in operation:
        possible += ["400"]
    if "requestBody" in operation:
        possible += ["409", "413", "415", "429", "503"]
    vendors = documented_vendors(path)
    if vendors and "requestBody" in operation:
        possible += ["404", "502"]
    responses = operation["responses"]
    responses.pop("422", None)
    for status in sorted(possible):
        responses.setdefault(status, {"$ref": f"#/components/responses/{_error_name(status, vendors)}"})


def _error_name(status: str, vendors: tuple[Vendor, ...]) -> str:
    return "_".join((status, *vendors))


def _error_response(status: str, vendors: tuple[Vendor, ...]) -> dict[str, Any]:
    meaning, text, headers = ERRORS[status]
    schemas = [{"$ref": f"#/components/schemas/{_VENDOR_ERRORS[vendor]['title']}"} for vendor in vendors]
    schema: dict[str, Any] = schemas[0] if schemas else {"$ref": "#/components/schemas/ErrorResponse"}
    if len(schemas) > 1:
        schema = {"oneOf": schemas}
    example = error_body(vendors[0], int(status), text) if vendors else {"error": text}
    content = {"application/json": {"schema": schema, "example": example}}
    return {"description": meaning, "content": content, **({"headers": headers} if headers else {})}


def _operation_id(path: str, operation: dict[str, Any], used: set[str]) -> str:
    """Return a unique id: protocol and function, and the path too for a route that is served at two paths."""
    base = _slug(f"{operation.get('tags', [''])[0]} {operation['summary']}")
    name = base if base not in used else f"{base}_at_{_slug(path)}"
    used.add(name)
    return name


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
