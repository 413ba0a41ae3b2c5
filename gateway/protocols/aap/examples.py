"""Examples of AAP for `/openapi.json`: those of version 1, and those in which other versions differ."""

from __future__ import annotations

from typing import Any

from gateway.events.messages import EXTENSIONS
from gateway.protocols.route_metadata import EventStreamMetadata, openapi_extra

SESSION = "sess_0f4c1c9e2a7b4d5e8f90123456789abc"
USER = {"role": "user", "content": "What is 2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TURN = """event: turn_start
data: {}
id: 1

event: text_delta
data: {"delta":"4"}
id: 2

event: turn_stop
data: {"stopReason":"end_turn"}
id: 4

"""
STREAMS = """With `stream` of `delta` or `message`: server-sent events, each with a name and JSON data. The first is `turn_start`,
the last `turn_stop`, with the reason of an `error` in `x-portico`; before a new session's first turn stands `session_start`.
Lines that begin with a colon only keep the connection open."""


def _data(**fields: Any) -> dict[str, Any]:
    needed = [name for name in fields if name != EXTENSIONS]
    return {"type": "object", "properties": fields, **({"required": needed} if needed else {})}


STRING = {"type": "string"}
EVENTS = {
    "session_start": _data(sessionId=STRING),
    "turn_start": _data(),
    "text_delta": _data(delta=STRING),
    "thinking_delta": _data(delta=STRING),
    "text": _data(text=STRING),
    "thinking": _data(thinking=STRING),
    "tool_call": _data(toolCallId=STRING, name=STRING, input={}),
    "tool_result": _data(toolCallId=STRING, content={}),
    "turn_stop": _data(stopReason=STRING, **{EXTENSIONS: {"type": "object"}}),
    "gap": _data(**{"from": {"type": "integer"}, "to": {"type": "integer"}, "reason": STRING}),
}
CREATE = openapi_extra(
    {
        "The answer as JSON": {"agent": {"name": "echo"}, "messages": [USER]},
        "The answer as a stream": {"agent": {"name": "echo"}, "messages": [USER], "stream": "delta"},
        "A session that begins with a history": {
            "agent": {"name": "echo"},
            "messages": [USER, ANSWER, {"role": "user", "content": [{"type": "text", "text": "And 3 + 3?"}]}],
        },
    },
    {201: {"sessionId": SESSION, "stopReason": "end_turn", "messages": [ANSWER]}},
    stream=EventStreamMetadata(STREAMS, f'event: session_start\ndata: {{"sessionId":"{SESSION}"}}\nid: 0\n\n{TURN}', EVENTS),
)
CREATE_TURN = openapi_extra(
    {
        "The next user message": {"messages": [USER], "stream": "delta"},
        "A result of the client's own tool": {
            "messages": [{"role": "tool", "toolCallId": "toolu_01", "content": "Sunny, 21 degrees."}]
        },
        "A permission or denial for a call of the agent's own tool": {
            "messages": [{"role": "tool_permission", "toolCallId": "toolu_02", "granted": False, "reason": "Not that file."}]
        },
        "One of the choices about a call": {
            "messages": [
                {"role": "tool_permission", "toolCallId": "toolu_02", "granted": True, "x-portico": {"choice": "allow_always"}}
            ]
        },
    },
    {200: {"stopReason": "end_turn", "messages": [ANSWER]}},
    stream=EventStreamMetadata(STREAMS, TURN, EVENTS),
)
CANCEL = openapi_extra(responses={200: {"sessionId": SESSION, "cancelled": True, "state": "idle"}})
FOLLOW_EVENTS = openapi_extra(
    stream=EventStreamMetadata(
        """Server-sent events: those of the session's turns, each with its `id`, and the messages of clients. Lines that
begin with a colon only keep the connection open.""",
        'event: client_message\ndata: {"role":"user","content":"2 + 2?"}\nid: 1.1\n\nevent: turn_start\ndata: {}\nid: 1\n\n',
        {
            **{name: data for name, data in EVENTS.items() if name != "session_start"},
            "client_message": {"type": "object", "properties": {"role": STRING}, "required": ["role"]},
            "tool_calls_cancelled": _data(toolCallIds={"type": "array", "items": STRING}),
        },
    )
)
INFO: dict[str, Any] = {
    "sessionId": SESSION,
    "agent": {"name": "claude", "tools": [{"name": "Bash", "trust": False}], "options": {"model": "sonnet"}},
    "tools": [TOOL],
    "x-portico": {
        "state": "idle",
        "stopReason": "end_turn",
        "title": "What is 2 + 2?",
        "createdAt": "2026-11-20T09:30:00.000Z",
        "updatedAt": "2026-11-20T09:30:04.125Z",
    },
}
TOOL_V3 = {("parameters" if name == "inputSchema" else name): value for name, value in TOOL.items()}
INFO_V3 = {**INFO, "tools": [TOOL_V3]}
FULL = {"history": {"full": [USER, ANSWER]}}
LIST = openapi_extra(responses={200: {"sessions": [SESSION]}})
LIST_V2 = openapi_extra(responses={200: {"sessions": [INFO]}})
LIST_V3 = openapi_extra(responses={200: {"sessions": [INFO_V3]}})
GET_SESSION = openapi_extra(responses={200: {**INFO, **FULL}})
GET_SESSION_V2 = openapi_extra(responses={200: INFO})
GET_SESSION_V3 = openapi_extra(responses={200: INFO_V3})
HISTORY = openapi_extra(responses={200: FULL})
CREATE_V3 = openapi_extra(
    {
        "A session": {"agent": {"name": "echo"}},
        "A session with a history": {"agent": {"name": "echo"}, "messages": [USER, ANSWER]},
    },
    {201: {"sessionId": SESSION}},
)


def _meta(version: int) -> dict[str, Any]:
    echo = {
        "name": "echo",
        "title": "Echo",
        "version": "1.0.0",
        "description": "Repeats each prompt; for tests and first steps.",
        "tools": [],
        "options": [{"type": "text", "name": "cwd", "title": "Working folder", "description": "", "default": ""}],
        "capabilities": {"history": {"full": {}}, "stream": {"delta": {}, "message": {}, "none": {}}},
    }
    return openapi_extra(responses={200: {"version": version, "agents": [echo]}})


META, META_V2, META_V3 = _meta(1), _meta(2), _meta(3)
