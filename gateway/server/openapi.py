"""Describes the gateway for `/openapi.json`, which FastAPI makes of the routes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.constants import REF_PREFIX
from pydantic.json_schema import models_json_schema

from gateway.protocols.model_apis.vendor_requests import AnthropicErrorResponse, OpenAIErrorResponse
from gateway.protocols.route_metadata import ErrorResponse

SUMMARY = "Agent CLIs on this machine, as protocol agents."
LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
JSON, STREAM = "application/json", "text/event-stream"
SERVERS: list[dict[str, Any]] = [{"url": "/"}]
TAGS = [
    {"name": name, "description": description}
    for name, description in {
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
    }.items()
]


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an app, with the schemas of the errors that its routes name (`route_metadata.errors`).

    An operation of AAP whose body chooses between JSON and a stream is there a second time, as one that streams: generators of
    clients take one type for one operation. Its path has the fragment `#stream`, which HTTP clients do not send.
    """
    document = app.openapi()
    models = (ErrorResponse, OpenAIErrorResponse, AnthropicErrorResponse)
    _, errors = models_json_schema([(model, "serialization") for model in models], ref_template=REF_PREFIX + "{model}")
    schemas: dict[str, Any] = document["components"]["schemas"]
    schemas |= errors["$defs"]
    for path, operations in [*document["paths"].items()]:
        if streams := {
            method: _as_stream(operation, schemas) for method, operation in operations.items() if _has_mode(operation)
        }:
            document["paths"][f"{path}#stream"] = streams
    return document


def _has_mode(operation: dict[str, Any]) -> bool:
    """Whether an operation answers with JSON or a stream, by the mode in its body."""
    both = operation["responses"].get("200", {}).get("content", {}).keys() >= {JSON, STREAM}
    return both and "requestBody" in operation and operation["tags"][0].startswith("AAP")


def _as_stream(operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the operation without its JSON response. Its body requests a stream; the schema of that is added to `schemas`."""
    streaming = deepcopy(operation)
    streaming["operationId"] += "_stream"
    streaming["summary"] += ": stream"
    del streaming["responses"]["200"]["content"][JSON]
    body = streaming["requestBody"]["content"][JSON]["schema"]
    name = body["$ref"].removeprefix(REF_PREFIX)
    body["$ref"] += "Streaming"
    schema = schemas[f"{name}Streaming"] = deepcopy(schemas[name])
    # Not by `allOf`: openapi-python-client 0.29 makes a model of two enumerations that does not compile.
    schema["properties"]["stream"] = {"title": "Stream", "type": "string", "enum": ["delta", "message"]}
    schema |= {"title": f"{name}Streaming", "required": [*schema.get("required", ()), "stream"]}
    schema["examples"] = [{**example, "stream": "delta"} for example in schema["examples"]]
    return streaming
