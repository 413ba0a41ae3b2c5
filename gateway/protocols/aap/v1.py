"""AAP version 1: its paths and message formats, as on the protocol's pages. It is also served at the root."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import ConfigDict

from gateway.app import Gateway
from gateway.protocols.aap import cancel_and_follow as extensions
from gateway.protocols.aap.agent_info import meta_response
from gateway.protocols.aap.agent_schema import MetaResponse
from gateway.protocols.aap.common_routes import PAGE, AfterQuery, LimitQuery, version_routers
from gateway.protocols.aap.message_queue import QueuedResponse
from gateway.protocols.aap.schema import (
    ANSWER,
    SESSION_EXAMPLE,
    SESSION_ID,
    USER,
    AgentResponse,
    ApplicationTool,
    CreateSessionRequest,
    HistoryType,
    OmitIfNone,
    SessionHistory,
    SessionInfo,
    SessionTurnRequest,
    WireModel,
)
from gateway.protocols.aap.sessions import histories, page, session_info
from gateway.protocols.aap.turn_responses import NEW_SESSION_STREAM, TURN_STREAM, ExchangeOf
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.route_metadata import BODY, errors

VERSION = 1
BASE = "/aap/v1"
SESSION = "/session/{session_id}"


class SessionInfoV1(SessionInfo):
    """A session without its histories."""

    tools: OmitIfNone[list[ApplicationTool]] = None


class SessionResponse(SessionInfoV1):
    """`GET /session/:id`, with every history that the agent declares."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**SESSION_EXAMPLE, "history": {"full": [USER, ANSWER]}}]})

    history: SessionHistory


class SessionListResponse(WireModel):
    """A page of session ids, newest first; `next` is absent on the last."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sessions": [SESSION_ID]}]})

    sessions: list[str]
    next: OmitIfNone[str] = None


def router(gateway: Gateway, base: str, tag: str) -> APIRouter:
    """Return the routes of this version at a base URL, with this tag."""
    public, routes = version_routers(gateway, base, tag)

    @public.get("/meta")
    async def meta() -> MetaResponse:
        """The protocol's version, and the agents that can be used now."""
        return await meta_response(gateway, VERSION, MetaResponse, ApplicationTool)

    @routes.get("/sessions")
    async def list_sessions(caller: CurrentCaller, after: AfterQuery = None, limit: LimitQuery = PAGE) -> SessionListResponse:
        """Session ids, newest first, a page at a time."""
        records, more = await page(gateway, caller, after, limit)
        return SessionListResponse(sessions=[record.id for record in records], next=more)

    @routes.put("/session", response_model=AgentResponse, status_code=201, responses={**errors(*BODY), 200: NEW_SESSION_STREAM})
    async def create_session(request: CreateSessionRequest, exchange: ExchangeOf) -> Response:
        """Create a session and answer its last user message."""
        return await exchange.create(gateway, request)

    @routes.post(SESSION, response_model=AgentResponse, responses={**errors(404, *BODY), 200: TURN_STREAM})
    async def create_turn(session_id: str, request: SessionTurnRequest, exchange: ExchangeOf) -> Response:
        """Send a user message, or answer the pending tool calls; the agent goes on."""
        return await exchange.turn(gateway, session_id, request, request.tools)

    @routes.post(SESSION + "/queue", status_code=201, responses=errors(404, *BODY))
    async def queue_message(session_id: str, request: SessionTurnRequest, exchange: ExchangeOf) -> QueuedResponse:
        """Put a user message in the session's queue, and do not wait for its turn."""
        return await exchange.queue(gateway, session_id, request, request.tools)

    @routes.get(SESSION, response_model=SessionResponse, responses=errors(404))
    async def get_session(caller: CurrentCaller, session_id: str, history: HistoryType | None = None) -> Response:
        """A session's settings and its histories; `history` narrows them to one."""
        session = await gateway.sessions.get(caller, session_id, reading=True)
        # The state is read before the history: a run that is over by then is stored by then.
        summary = await gateway.sessions.summary(session)
        info = session_info(gateway, SessionInfoV1, ApplicationTool, summary)
        return await histories(session, history, info, errors_as_text=gateway.settings.server.errors_as_text)

    @routes.delete(SESSION, status_code=204, responses=errors(404))
    async def delete_session(caller: CurrentCaller, session_id: str) -> Response:
        """Stop a session and delete it."""
        await gateway.sessions.delete(caller, session_id)
        return Response(status_code=204)

    routes.routes += [*public.routes, *extensions.router(gateway, base, tag, SESSION).routes]
    return routes
