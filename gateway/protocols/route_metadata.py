"""OpenAPI metadata of routes beyond their types: operation ids, error responses, event streams and examples without a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi.openapi.constants import REF_PREFIX
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict

Responses = dict[int | str, dict[str, Any]]
"""The type of `responses` of routers and routes."""
Errors = Callable[..., Responses]
"""The type of `errors`, and of such functions with the error format of another API."""


class ErrorResponse(BaseModel):
    """Every error: a text for people, what was wrong and what to do."""

    model_config = ConfigDict(
        # The schema is needed for the OpenAPI document only.
        defer_build=True,
        json_schema_extra={
            "examples": [
                {"error": "messages: empty; send one user message"},
                {"error": "no API key: send 'Authorization: Bearer KEY'; `portico key` prints the key"},
                {"error": "this gateway is not 'example.org'; use its address, or add the name to server.hosts"},
                {"error": "there is no session 'sess_x'; GET the list of sessions"},
                {"error": "this session is at work on a turn; wait for its turn_stop, then send this again"},
                {"error": "the body is larger than 67108864 bytes (server.max_body); send less at a time"},
                {"error": "all 16 slots for live agents are in use"},
                {"error": "agent 'claude' cannot start: no program"},
            ]
        },
    )

    error: str


_ERRORS: Responses = {
    400: {"description": "The request is invalid. Nothing has changed."},
    401: {"description": "No key, or an unknown one.", "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}}},
    403: {"description": "The Host or the Origin is not allowed, or the key may not do this."},
    404: {"description": "Nothing has this id."},
    406: {"description": "The client does not accept server-sent events."},
    409: {"description": "Not possible in this state: a turn is running, or the call was answered before. Nothing has changed."},
    413: {"description": "The body is too large."},
    415: {"description": "The body is not JSON."},
    429: {
        "description": "All slots for live agents are in use, or a limit of the key is reached. Nothing has changed.",
        "headers": {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}},
    },
    501: {"description": "This gateway does not support it. The text says what is missing."},
    502: {"description": "The run has failed before it has answered anything."},
    503: {"description": "The agent cannot start here, or the gateway is shutting down."},
    "default": {"description": "Any other error."},
}
ANY_REQUEST = (400, 401, 403, 429, 503, "default")
"""Statuses of errors that any request with a key can get, for its router."""
BODY = (409, 413, 415)
"""Statuses of errors that a request with a body can get besides."""


def errors(*statuses: int | str, models: tuple[type[BaseModel], ...] = (ErrorResponse,)) -> Responses:
    """Return error responses, for `responses` of a router or a route. Each has the format of one of the models.

    A response refers to its model by name: FastAPI would build a validator for each response of each route, in 0.1 ms.
    `openapi_document` adds the schemas of the models.
    """
    references = [{"$ref": REF_PREFIX + model.__name__} for model in models]
    content = {"application/json": {"schema": references[0] if len(references) == 1 else {"oneOf": references}}}
    return {status: {**_ERRORS[status], "content": content} for status in statuses}


def operation_id(route: APIRoute) -> str:
    """Return the id of an operation: the tag, which names the protocol, and the function. For `generate_unique_id_function`."""
    return re.sub("[^a-z0-9]+", "_", f"{route.tags[0]} {route.name}".lower())


def example(body: Any) -> dict[str, Any]:
    """Return the response of a route without a model: an example of its JSON."""
    return {"content": {"application/json": {"example": body}}}


def stream_response(
    description: str,
    example: str,
    events: Mapping[str, Mapping[str, Any]],
    *,
    last: str | None = None,
    json: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a response of server-sent events.

    `events` maps the names of events to the JSON schemas of their data. The name "" is for events without a name. `last` is the
    data of an event that ends the stream and is no JSON. `json` is the response as JSON that a client can get instead.

    OpenAPI 3.1 has no streams. `itemSchema`, of OpenAPI 3.2, describes each event. `schema` is for generators of clients: the
    data of an event for those that know streams, and a text for others.
    """
    items = [_event(*event) for event in events.items()]
    if last is not None:
        end = {"type": "object", "properties": {"data": {"const": last}}, "required": ["data"]}
        # An event without a name is described by its data alone, and would match too.
        items = [{**schema, "not": end} for schema in items] + [end]
    text = {"type": "string", "description": "The whole stream, for clients that do not parse it."}
    data = [{"title": name, **schema} if name else dict(schema) for name, schema in events.items()]
    stream = {"schema": {"anyOf": [text, *data]}, "itemSchema": {"title": "Event", "oneOf": items}, "example": example}
    return {"description": description, "content": {**(json or {}).get("content", {}), "text/event-stream": stream}}


def _event(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    body = {"type": "string", "contentMediaType": "application/json", "contentSchema": dict(data)}
    if not name:
        return {"type": "object", "properties": {"data": body}, "required": ["data"]}
    return {"type": "object", "properties": {"event": {"const": name}, "data": body}, "required": ["event", "data"]}
