"""The OutputEvent gateway: `POST /v1/execute` runs one task and streams its events.

Frames are `data: {"kind": …}` without an `event:` line, as on the manual's page of the endpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from drivers.contract.events import (
    AgentToken,
    Error,
    Event,
    Hook,
    Notice,
    RateLimit,
    SessionEnd,
    Stderr,
    Stdout,
    Subagent,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from gateway.app import Gateway
from gateway.events.event_log import Entry
from gateway.events.turn_reader import Turn
from gateway.protocols.authenticated_routes import CurrentCaller, CurrentQuotas, authenticated_router
from gateway.protocols.route_metadata import BODY, errors, stream_response
from gateway.protocols.sse import event_stream
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.one_shot_tasks import Task
from gateway.security.authentication import Caller
from gateway.text_limits import MAX_NAME, Name

VISIBLE: frozenset[type[Event]] = frozenset(
    (AgentToken, Thinking, ToolCall, ToolResult, Subagent, Hook, Usage, Stdout, Stderr, SessionEnd, Error)
)
"""The events of the endpoint's table. Other kinds are the gateway's own and are not sent."""
OMITTED_FIELDS: Mapping[type[Event], set[str]] = {
    ToolCall: {"parent_id", "subagent_id"},
    ToolResult: {"parent_id", "changes", "exit_code"},
    SessionEnd: {"stop_reason", "prompt_kept"},
    Error: {"resets_at"},
}
"""Fields that the endpoint's table lacks."""
NOTICE = "x-portico.notice"
"""The kind of the event `notice`, which the endpoint's table lacks."""
RATE_LIMIT = "x-portico.rate_limit"
"""The kind of the event `rate_limit`, which the endpoint's table lacks: clients ignore unknown kinds."""
KINDS = [
    "agent_token", "thinking", "tool_call", "tool_result", "subagent", "hook", "usage",
    "stdout", "stderr", "session_end", "error",
]  # fmt: skip
STREAM = stream_response(
    """Server-sent events without names, whose data are objects of a `kind`; the last is `session_end`. Lines that begin with
a colon only keep the connection open.""",
    """data: {"kind":"agent_token","text":"hello"}

data: {"kind":"session_end","exit_code":0,"duration_ms":26}

""",
    {"": {"type": "object", "properties": {"kind": {"enum": KINDS}}, "required": ["kind"]}},
)


AfterHeader = Annotated[int | None, Header(ge=0, description="Number the frames, and begin after this one.")]


class ExecuteRequest(BaseModel):
    """One task. `driver` is the name of an agent here. The API key is `auth_token` or in the Authorization header."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        json_schema_extra={
            "examples": [
                {"driver": "echo", "task": "hello"},
                {"driver": "echo", "task": "hello", "model": "sonnet", "idempotency_key": "7d1f0a"},
            ]
        },
    )

    task: str = Field(min_length=1)
    driver: str = Field(min_length=1, max_length=MAX_NAME)
    model: Name | None = None
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=1024)
    auth_token: str | None = None


def router(gateway: Gateway) -> APIRouter:
    """Return the route of a gateway."""
    routes = authenticated_router(gateway, "OutputEvent gateway", body_field="auth_token")

    @routes.post("/v1/execute", response_class=Response, responses={**errors(*BODY), 200: STREAM})
    async def execute(
        request: ExecuteRequest, caller: CurrentCaller, quotas: CurrentQuotas, last_event_id: AfterHeader = None
    ) -> Response:
        """Run a task and stream its events until `session_end`. The run goes on if the client disconnects."""
        quotas.take_stream()
        task = Task(request.driver, request.task, request.model, caller.name)
        turn = await gateway.tasks.execute(task, _idempotency_key(request, caller))
        return event_stream(_frames(turn, last_event_id), gateway.keep_alive, clock=gateway.clock)

    return routes


def event_json(event: Event, encoded: bytes) -> bytes | None:
    """Return the JSON that clients get of an event, given `event.encode()`; None for an event that is not sent."""
    if isinstance(event, RateLimit):
        return to_json({**event.model_dump(), "kind": RATE_LIMIT})
    if isinstance(event, Notice):
        return to_json({**event.model_dump(), "kind": NOTICE})
    omitted = OMITTED_FIELDS.get(type(event))
    if omitted is not None:
        return event.__pydantic_serializer__.to_json(event, exclude=omitted)
    return encoded if type(event) in VISIBLE else None


def _idempotency_key(request: ExecuteRequest, caller: Caller) -> IdempotencyKey | None:
    if request.idempotency_key is None:
        return None
    return IdempotencyKey.of(caller.name, "execute", request.idempotency_key, [request.driver, request.task, request.model])


async def _frames(turn: Turn, after: int | None) -> AsyncIterator[bytes]:
    async for entries in turn.batches():
        sent = [_frame(entry, data, after) for entry in entries if (data := event_json(entry.event, entry.data)) is not None]
        if frames := b"".join(sent):
            yield frames


def _frame(entry: Entry, data: bytes, after: int | None) -> bytes:
    if after is None:
        return b"data: %b\n\n" % data
    return b"data: %b\nid: %d\n\n" % (data, entry.seq) if entry.seq > after else b""
