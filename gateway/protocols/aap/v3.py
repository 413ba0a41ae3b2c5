"""AAP version 3: its paths and message formats. A session is created without a turn; turns have a path of their own."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict
from starlette.routing import BaseRoute

from drivers.contract.messages import Message
from gateway.app import Gateway
from gateway.protocols.aap import cancel_and_follow as extensions
from gateway.protocols.aap import (
    folders,
    search,
    session_changes,
    session_log,
    session_updates,
    stored_messages,
    worktrees,
)
from gateway.protocols.aap.agent_info import meta_response
from gateway.protocols.aap.agent_schema import ECHO, AgentBase
from gateway.protocols.aap.common_routes import PAGE, AfterQuery, LimitQuery, version_routers
from gateway.protocols.aap.message_queue import QueuedResponse
from gateway.protocols.aap.schema import (
    ANSWER,
    SESSION_EXAMPLE,
    SESSION_ID,
    USER,
    WEATHER,
    AgentConfig,
    AgentResponse,
    HistoryType,
    OmitIfNone,
    SessionHistoryResponse,
    SessionInfo,
    Tool,
    TurnRequest,
    WireModel,
)
from gateway.protocols.aap.session_filters import Wanted, filtered
from gateway.protocols.aap.sessions import create, histories, session_info
from gateway.protocols.aap.turn_responses import TURN_STREAM, ExchangeOf
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.route_metadata import BODY, errors

VERSION = 3
BASE = "/aap/v3"
SESSION = "/sessions/{session_id}"
SESSION_EXAMPLE_V3: JsonDict = {
    **SESSION_EXAMPLE,
    "tools": [{("parameters" if name == "inputSchema" else name): value for name, value in WEATHER.items()}],
}


class ClientTool(Tool):
    """A tool as of version 3."""

    other_version = ("inputSchema", "AAP v1 and v2, at the base URLs /aap/v1 and /aap/v2")

    input_schema: dict[str, Any] = Field(alias="parameters")


class AgentInfoV3(AgentBase):
    """An agent, with the tools that it exposes."""

    tools: list[ClientTool]


class MetaResponseV3(WireModel):
    """`GET /meta`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"version": 3, "agents": [ECHO]}]})

    version: int
    agents: list[AgentInfoV3]


class PostSessionsRequest(WireModel):
    """`POST /sessions`. The messages are history: nothing runs yet."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"agent": {"name": "echo"}}, {"agent": {"name": "echo"}, "messages": [USER, ANSWER]}]}
    )

    agent: AgentConfig
    messages: tuple[Message, ...] = ()
    tools: tuple[ClientTool, ...] | None = None


class PostSessionsResponse(WireModel):
    """The new session's id."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sessionId": SESSION_ID}]})

    session_id: str = Field(alias="sessionId")


class PostSessionTurnRequest(TurnRequest):
    """`POST /sessions/:id/turns`."""

    tools: tuple[ClientTool, ...] | None = None


class SessionInfoV3(SessionInfo):
    """`GET /sessions/:id`, and an item of the list."""

    model_config = ConfigDict(json_schema_extra={"examples": [SESSION_EXAMPLE_V3]})

    tools: OmitIfNone[list[ClientTool]] = None


class SessionListV3(WireModel):
    """A page of sessions, newest first; `next` is absent on the last."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sessions": [SESSION_EXAMPLE_V3]}]})

    sessions: list[SessionInfoV3]
    next: OmitIfNone[str] = None


def router(gateway: Gateway, base: str, tag: str) -> APIRouter:
    """Return the routes of this version at a base URL, with this tag."""
    public, routes = version_routers(gateway, base, tag)

    @public.get("/meta")
    async def meta() -> MetaResponseV3:
        """The protocol's version, and the agents that can be used now."""
        return await meta_response(gateway, VERSION, MetaResponseV3, ClientTool)

    @routes.get("/sessions")
    async def list_sessions(
        caller: CurrentCaller, wanted: Wanted, after: AfterQuery = None, limit: LimitQuery = PAGE
    ) -> SessionListV3:
        """Sessions with their settings, newest first, a page at a time."""
        records, more = await filtered(gateway, caller, after, limit, wanted)
        found = await gateway.sessions.summaries(records)
        return SessionListV3(sessions=[session_info(gateway, SessionInfoV3, ClientTool, one) for one in found], next=more)

    @routes.post("/sessions", status_code=201, responses=errors(*BODY))
    async def create_session(caller: CurrentCaller, request: PostSessionsRequest, exchange: ExchangeOf) -> PostSessionsResponse:
        """Create a session; the agent does not run."""
        key = exchange.idempotency_key("create v3", request)
        session = await gateway.idempotency.once(
            key,
            lambda: create(gateway, caller, request.agent, request.tools, request.messages, key),
            lambda known: gateway.sessions.get(caller, known.log_id, reading=True),
        )
        return PostSessionsResponse(session_id=session.id)

    @routes.post(SESSION + "/turns", response_model=AgentResponse, responses={**errors(404, *BODY), 200: TURN_STREAM})
    async def create_turn(session_id: str, request: PostSessionTurnRequest, exchange: ExchangeOf) -> Response:
        """Send a user message, or answer the pending tool calls; the agent goes on."""
        return await exchange.turn(gateway, session_id, request, request.tools)

    @routes.post(SESSION + "/queue", status_code=201, responses=errors(404, *BODY))
    async def queue_message(session_id: str, request: PostSessionTurnRequest, exchange: ExchangeOf) -> QueuedResponse:
        """Put a user message in the session's queue, and do not wait for its turn."""
        return await exchange.queue(gateway, session_id, request, request.tools)

    @routes.get(SESSION, responses=errors(404))
    async def get_session(caller: CurrentCaller, session_id: str) -> SessionInfoV3:
        """A session's settings."""
        summary = await gateway.sessions.summary(await gateway.sessions.get(caller, session_id, reading=True))
        return session_info(gateway, SessionInfoV3, ClientTool, summary)

    @routes.get(SESSION + "/history", response_model=SessionHistoryResponse, responses=errors(404))
    async def get_history(caller: CurrentCaller, session_id: str, type: HistoryType) -> Response:
        """One of the histories that the agent declares."""
        session = await gateway.sessions.get(caller, session_id, reading=True)
        return await histories(session, type, errors_as_text=gateway.settings.server.errors_as_text)

    @routes.delete(SESSION, status_code=204, responses=errors(404))
    async def delete_session(caller: CurrentCaller, session_id: str) -> Response:
        """Stop a session and delete it."""
        await gateway.sessions.delete(caller, session_id)
        return Response(status_code=204)

    routes.routes += [*public.routes, *_extensions(gateway, base, tag)]
    return routes


def _extensions(gateway: Gateway, base: str, tag: str) -> list[BaseRoute]:
    """Return the routes that the protocol does not have."""
    found = [*extensions.router(gateway, base, tag, SESSION).routes]
    for router_of in (session_log.router, stored_messages.router, folders.router):
        found += router_of(gateway, base, tag, SESSION).routes
    for of_sessions in (session_updates.router, session_changes.router):
        found += of_sessions(gateway, base, tag, SessionInfoV3, ClientTool).routes
    return [*found, *search.router(gateway, base, tag).routes, *worktrees.router(gateway, base, tag).routes]
