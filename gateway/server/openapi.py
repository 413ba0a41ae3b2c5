"""Describes the gateway for `/openapi.json`, which FastAPI makes of the routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.constants import REF_PREFIX
from pydantic.json_schema import models_json_schema

from gateway.protocols.model_apis.vendor_requests import AnthropicErrorResponse, OpenAIErrorResponse
from gateway.protocols.route_metadata import ErrorResponse

SUMMARY = "Agent CLIs on this machine, as protocol agents."
LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
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
    """Return the OpenAPI document of an app, with the schemas of the errors that its routes name (`route_metadata.errors`)."""
    document = app.openapi()
    models = (ErrorResponse, OpenAIErrorResponse, AnthropicErrorResponse)
    _, schemas = models_json_schema([(model, "serialization") for model in models], ref_template=REF_PREFIX + "{model}")
    document["components"]["schemas"] |= schemas["$defs"]
    return document
