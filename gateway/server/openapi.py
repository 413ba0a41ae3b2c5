"""`/openapi.json`: what the routes say of themselves, and around it what holds for all of them: the key, the form and
the statuses of errors, names for a client's generator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

SUMMARY = "Agent CLIs on this machine, as protocol agents."
TAGS = {
    "AAP v1": "The Agent Application Protocol, version 1: sessions with an agent, turn by turn.",
    "AAP v1 at the root": "The same version once more, for clients that know no base URL.",
    "AAP v2": "Version 2: as version 1, with histories on a path of their own and settings in the list.",
    "AAP v3": "Version 3: sessions are made without a turn, and turns have a path of their own.",
    "OutputEvent gateway": "One task in, one stream of events out.",
    "ACP": "The Agent Client Protocol over streamable HTTP; at the same path over WebSocket.",
    "operations": "The gateway's own: what is installed, is it up, its figures.",
}
KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "`portico key` prints the key. A gateway that was started with `--no-auth` asks for none.",
}
ERROR = {
    "type": "object",
    "title": "ErrorResponse",
    "description": "Every refusal: a text for people, what was wrong and what to do.",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}
REFUSALS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "400": ("The request is not right. Nothing has changed.", "messages: empty; send one user message", {}),
    "401": (
        "No key, or one that is not known here.",
        "no API key: send 'Authorization: Bearer KEY'; `portico key` prints the key",
        {"WWW-Authenticate": {"schema": {"type": "string"}}},
    ),
    "403": (
        "Not by this name, or not for this web page.",
        "this gateway is not 'example.org'; use its address, or name it in server.hosts if it is meant to be known so",
        {},
    ),
    "404": ("There is nothing of this id.", "there is no session 'sess_x'; GET the list of sessions for those there are", {}),
    "409": (
        "Not in this state: a turn is running, or the call was answered before. Nothing has changed.",
        "this session is at work on a turn; wait for its turn_stop, then send this again",
        {},
    ),
    "413": ("The body is too large.", "the body is larger than 67108864 bytes (server.max_body); send less at a time", {}),
    "415": ("The body is not JSON.", "the body must be a JSON object, sent with Content-Type: application/json", {}),
    "429": ("Every place for a live agent is taken. Nothing has changed.", "all 16 places for live agents are taken", RETRY),
    "503": ("The agent cannot start here, or the gateway is going down.", "agent 'claude' cannot start: no program", {}),
}
"""By status: what it means, an example of its text, and its headers."""


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The description of all of an app's routes, in OpenAPI 3.1."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=SUMMARY,
        routes=app.routes,
        servers=[{"url": "/"}],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    named: set[str] = set()
    tags: dict[str, None] = {}
    for path, operation in _operations(document):
        _refuses(path, operation)
        operation["operationId"] = _name(path, operation, named)
        tags |= dict.fromkeys(operation.get("tags", ()))
    document["tags"] = [{"name": tag, "description": TAGS.get(tag, tag)} for tag in tags]
    parts = document["components"]
    parts["securitySchemes"] = {"key": KEY}
    parts["responses"] = {status: _refusal(*words) for status, words in REFUSALS.items()}
    # FastAPI's own form of a refusal, which this gateway does not use.
    for unused in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(unused, None)
    parts["schemas"]["ErrorResponse"] = ERROR
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _refuses(path: str, operation: dict[str, Any]) -> None:
    """Add the errors that the shape of an operation makes possible; what it says of one itself stands."""
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
    responses = operation["responses"]
    responses.pop("422", None)
    for status in sorted(possible):
        responses.setdefault(status, {"$ref": f"#/components/responses/{status}"})


def _refusal(means: str, example: str, headers: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}, "example": {"error": example}}}
    return {"description": means, "content": content, **({"headers": headers} if headers else {})}


def _name(path: str, operation: dict[str, Any], named: set[str]) -> str:
    """A name that no other operation has: protocol and function, and the path too where one route stands in two places."""
    base = _slug(f"{operation.get('tags', [''])[0]} {operation['summary']}")
    name = base if base not in named else f"{base}_at_{_slug(path)}"
    named.add(name)
    return name


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
