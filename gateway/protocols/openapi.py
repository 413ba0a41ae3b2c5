"""What a route tells `/openapi.json` beyond its types: examples, streams, and that it asks for a key.

Errors that any route may give are not declared here: gateway/server/openapi.py knows them for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SECURITY_REQUIREMENT: Mapping[str, Any] = {"security": [{"key": []}]}
"""Said by authenticated_route routes themselves (guard.py)."""


@dataclass(frozen=True)
class EventStreamMetadata:
    """An answer of server-sent events: words on it, an example, and the JSON schemas of its events' data.

    `events` is by the events' names; under the name "" stand the data of events without one.
    """

    words: str
    example: str
    events: Mapping[str, Mapping[str, Any]]

    def content(self) -> dict[str, Any]:
        """OpenAPI 3.1 has no word for the items of a stream: as is the custom, the schema is that of each event."""
        return {"schema": {"title": "Event", "oneOf": [_event(*event) for event in self.events.items()]}, "example": self.example}


def openapi_extra(
    requests: Mapping[str, Any] | None = None,
    answers: Mapping[int, Any] | None = None,
    *,
    stream: EventStreamMetadata | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """The `openapi_extra` of a route: bodies of requests by a few words on each, JSON answers by their status, and what
    else it may answer with 200: a stream, or a text."""
    extra: dict[str, Any] = {"responses": {}}
    if requests:
        examples = {f"example{n}": {"summary": words, "value": body} for n, (words, body) in enumerate(requests.items(), 1)}
        extra["requestBody"] = {"content": {"application/json": {"examples": examples}}}
    for status, body in (answers or {}).items():
        extra["responses"][str(status)] = {"content": {"application/json": {"example": body}}}
    good = extra["responses"].setdefault("200", {"content": {}}) if stream or text else {}
    if stream:
        good["description"] = stream.words
        good["content"]["text/event-stream"] = stream.content()
    if text:
        good["content"]["text/plain"] = {"schema": {"type": "string"}, "example": text}
    return extra


def _event(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    body = {"type": "string", "contentMediaType": "application/json", "contentSchema": dict(data)}
    if not name:
        return {"type": "object", "properties": {"data": body}, "required": ["data"]}
    return {"type": "object", "properties": {"event": {"const": name}, "data": body}, "required": ["event", "data"]}
