"""Examples of the extensions about sessions for `/openapi.json`."""

from __future__ import annotations

from typing import Any

from gateway.protocols.aap.examples import INFO_V3, SESSION
from gateway.protocols.route_metadata import EventStreamMetadata, openapi_extra

_EVENT: dict[str, Any] = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
_PROMPT = {"kind": "turn_start", "messages": [{"role": "user", "content": "What is 2 + 2?"}], "permissions": []}
LOG = openapi_extra(
    responses={
        200: {
            "events": [
                {"id": 1, "event": _PROMPT},
                {"id": 2, "event": {"kind": "agent_token", "text": "4"}},
                {"id": 3, "event": {"kind": "message_end", "discarded": False}},
                {"id": 4, "event": {"kind": "session_end", "exit_code": 0, "duration_ms": 812, "stop_reason": "end_turn"}},
            ],
            "first": 1,
            "last": 4,
            "more": False,
            "runs": [
                {
                    "id": "run_5d2b1c9e2a7b4d5e8f90123456789abc",
                    "firstSeq": 1,
                    "startedAt": "2026-11-20T09:30:03.310Z",
                    "endedAt": "2026-11-20T09:30:04.125Z",
                    "state": "ended",
                    "stopReason": "end_turn",
                }
            ],
            "seeds": 0,
        }
    },
    stream=EventStreamMetadata(
        """With `Accept: text/event-stream`: every event after a number, without an end. `event: deleted` is the last one if the
session is deleted. Lines that begin with a colon only keep the connection open.""",
        'id: 2\ndata: {"kind":"agent_token","text":"4"}\n\n',
        {"": _EVENT, "deleted": {"type": "object", "properties": {"sessionId": {"type": "string"}}}},
    ),
)
UPDATES = openapi_extra(
    stream=EventStreamMetadata(
        """Server-sent events: first `ready`, then `session` with a session as in the list whenever one is created or changes, and
`session_deleted`. Lines that begin with a colon only keep the connection open.""",
        f"""event: ready
data: {{}}

event: session
data: {{"sessionId":"{SESSION}","agent":{{"name":"claude"}},"x-portico":{{"state":"running"}}}}

""",
        {
            "ready": {"type": "object"},
            "session": {"$ref": "#/components/schemas/SessionInfoV3"},
            "session_deleted": {"type": "object", "properties": {"sessionId": {"type": "string"}}, "required": ["sessionId"]},
        },
    )
)
RENAME = openapi_extra(
    {"A title": {"title": "Arithmetic"}, "The agent's title again": {"title": ""}},
    {200: {**INFO_V3, "x-portico": {**INFO_V3["x-portico"], "title": "Arithmetic"}}},
)
FORK = openapi_extra(
    {
        "The whole session": {},
        "What was complete with an event": {"after": 4},
        "The first messages": {"messages": 2},
    },
    {201: {"sessionId": "sess_77c1c9e2a7b4d5e8f90123456789abcd"}},
)
MESSAGES = openapi_extra(
    responses={
        200: {
            "messages": [
                {"position": 0, "seq": 1, "message": {"role": "user", "content": "What is 2 + 2?"}},
                {"position": 1, "seq": 3, "message": {"role": "assistant", "content": "4"}},
            ],
            "total": 2,
        }
    }
)
FILES = openapi_extra(
    responses={
        200: {
            "files": [{"path": "src/main.py", "type": "file"}, {"path": "src/main", "type": "folder"}],
            "truncated": False,
        }
    }
)
CALL_FILES = openapi_extra(
    responses={
        200: {
            "files": [
                {
                    "path": "/home/ada/project/notes.md",
                    "exists": True,
                    "text": "# Notes\n",
                    "size": 8,
                    "modified": "2026-11-20T09:30:04.125Z",
                },
                {"path": "/etc/hosts", "problem": "it is outside of the session's folders"},
            ]
        }
    }
)
FOLDERS = openapi_extra(responses={200: {"folders": ["/home/ada/project", "/home/ada/project-2"]}})
SEARCH = openapi_extra(
    responses={
        200: {
            "results": [
                {
                    "sessionId": SESSION,
                    "title": "Arithmetic",
                    "agent": "claude",
                    "updatedAt": "2026-11-20T09:30:04.125Z",
                    "role": "user",
                    "position": 0,
                    "seq": 1,
                    "snippet": [{"text": "What is the ", "match": False}, {"text": "sum", "match": True}],
                }
            ],
            "complete": True,
        }
    }
)
NO_SEARCH: dict[int | str, dict[str, Any]] = {
    501: {
        "description": "The store cannot be searched.",
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/ErrorResponse"},
                "example": {"error": "the search needs an SQLite with the module FTS5, which this Python has not"},
            }
        },
    }
}
