"""Follows all sessions of a caller: `GET /updates`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.openapi.constants import REF_PREFIX
from pydantic_core import to_json

from gateway.app import Gateway
from gateway.cluster.forwarding.node_request import with_other_nodes
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import SESSION_EXAMPLE, SessionInfo, Tool
from gateway.protocols.aap.sessions import session_info
from gateway.protocols.authenticated_routes import CurrentCaller, CurrentQuotas
from gateway.protocols.route_metadata import stream_response
from gateway.protocols.sse import event_stream
from gateway.security.authentication import is_forwarded
from gateway.sessions.changes import ChangeListener

INTERVAL = 0.1
"""Seconds between two batches of changes: a session is in each of them once."""
Info = TypeVar("Info", bound=SessionInfo)


def router(gateway: Gateway, base: str, tag: str, kind: type[Info], tool: type[Tool]) -> APIRouter:
    """The route at a base URL, with this tag. `kind` and `tool` are the version's formats of a session and of a tool."""
    _, routes = version_routers(gateway, base, tag)
    stream = stream_response(
        """Server-sent events: first `ready`, then `session` with a session as in the list whenever one is created or changes, and
`session_deleted`. Lines that begin with a colon only keep the connection open.""",
        f"""event: ready
data: {{}}

event: session
data: {to_json({**SESSION_EXAMPLE, "tools": []}).decode()}

""",
        {
            "ready": {"type": "object"},
            "session": {"$ref": REF_PREFIX + kind.__name__},
            "session_deleted": {"type": "object", "properties": {"sessionId": {"type": "string"}}, "required": ["sessionId"]},
        },
    )

    @routes.get("/updates", response_class=Response, responses={200: stream})
    async def updates(request: Request, caller: CurrentCaller, quotas: CurrentQuotas) -> Response:
        """Follow all sessions: what the list has of one, whenever it is created or changes. Nothing is repeated."""
        if not is_forwarded(request.scope):
            # The node of the client counts it.
            quotas.take_stream()
        listener = gateway.sessions.changes.listen(caller)
        frames = with_other_nodes(request.scope, caller, _follow(gateway, listener, kind, tool))
        return event_stream(frames, gateway.keep_alive, closed=listener.close, clock=gateway.clock)

    return routes


async def _follow(gateway: Gateway, listener: ChangeListener, kind: type[Info], tool: type[Tool]) -> AsyncGenerator[bytes]:
    if listener.ended or not await gateway.sessions.stored():
        return
    yield b"event: ready\ndata: {}\n\n"
    while (changes := await listener.take()) is not None:
        deleted = [session_id for session_id, change in changes.items() if change == "deleted"]
        changed = await gateway.sessions.summaries_of([one for one in changes if changes[one] == "changed"])
        frames = [b"event: session_deleted\ndata: %b\n\n" % to_json({"sessionId": session_id}) for session_id in deleted]
        for summary in changed:
            frames.append(b"event: session\ndata: %b\n\n" % to_json(session_info(gateway, kind, tool, summary), by_alias=True))
        if frames:
            yield b"".join(frames)
        await gateway.clock.sleep(INTERVAL)
