"""OpenAPI metadata of routes beyond their types: examples, event streams, and that a key is required.

Error responses are added to all routes by gateway/server/openapi.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SECURITY_REQUIREMENT: Mapping[str, Any] = {"security": [{"key": []}]}
"""For `openapi_extra`. Authenticated routes (authentication.py) add it themselves."""


@dataclass(frozen=True)
class EventStreamMetadata:
    """A response of server-sent events: its description, an example, and the JSON schemas of the events' data.

    `events` maps event names to schemas. The name "" is for events without a name. `last` is the data of an event that ends the
    stream and is no JSON.
    """

    description: str
    example: str
    events: Mapping[str, Mapping[str, Any]]
    last: str | None = None

    def content(self) -> dict[str, Any]:
        """Return the media type object. OpenAPI 3.1 cannot describe a stream: by convention, the schema is that of each event."""
        events = [_event(*event) for event in self.events.items()]
        if self.last is not None:
            last = {"type": "object", "properties": {"data": {"const": self.last}}, "required": ["data"]}
            # An event without a name is described by its data alone, and would match too.
            events = [{**event, "not": last} for event in events] + [last]
        return {"schema": {"title": "Event", "oneOf": events}, "example": self.example}


def openapi_extra(
    requests: Mapping[str, Any] | None = None,
    responses: Mapping[int, Any] | None = None,
    *,
    stream: EventStreamMetadata | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """Return the `openapi_extra` of a route.

    `requests` maps summaries to example bodies, `responses` maps statuses to example JSON bodies. `stream` and `text` describe
    what else the route may answer with 200: server-sent events, or the example of a plain text.
    """
    extra: dict[str, Any] = {"responses": {}}
    if requests:
        examples = {f"example{n}": {"summary": summary, "value": body} for n, (summary, body) in enumerate(requests.items(), 1)}
        extra["requestBody"] = {"content": {"application/json": {"examples": examples}}}
    for status, body in (responses or {}).items():
        extra["responses"][str(status)] = {"content": {"application/json": {"example": body}}}
    success = extra["responses"].setdefault("200", {"content": {}}) if stream or text else {}
    if stream:
        success["description"] = stream.description
        success["content"]["text/event-stream"] = stream.content()
    if text:
        success["content"]["text/plain"] = {"schema": {"type": "string"}, "example": text}
    return extra


def _event(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    body = {"type": "string", "contentMediaType": "application/json", "contentSchema": dict(data)}
    if not name:
        return {"type": "object", "properties": {"data": body}, "required": ["data"]}
    return {"type": "object", "properties": {"event": {"const": name}, "data": body}, "required": ["event", "data"]}
