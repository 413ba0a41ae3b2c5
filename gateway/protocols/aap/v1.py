"""AAP version 1: its paths and their answers, as of the seeds' pages; served at the base URL."""

from __future__ import annotations

import base64
import binascii
from typing import Literal

from fastapi import APIRouter, Query, Response

from gateway.errors import BadRequest, NotFound
from gateway.gateway import Gateway
from gateway.protocols.aap.meta import agent_info, merged, tool_json
from gateway.protocols.aap.shapes import (
    AgentResponse,
    CreateSessionRequest,
    MetaResponse,
    ServerToolRef,
    SessionAgent,
    SessionHistory,
    SessionListResponse,
    SessionResponse,
    SessionTurnRequest,
)
from gateway.protocols.aap.turns import answer, check_new, take_turn
from gateway.protocols.aap.views import STOP_REASONS
from gateway.protocols.guard import guarded
from gateway.redaction import HIDDEN
from gateway.session import Session
from gateway.session_config import SessionConfig
from gateway.store.store import Cursor

VERSION = 1
PAGE = 100


def router(gateway: Gateway) -> APIRouter:
    """The routes of this version over a gateway."""
    everybody = APIRouter()
    routes = APIRouter(tags=["AAP v1"], route_class=guarded(gateway.auth))

    @everybody.get("/meta")
    async def meta() -> MetaResponse:
        """The protocol's version, and the agents that can be used here and now."""
        found = await gateway.discovery.offered()
        return MetaResponse(version=VERSION, agents=[agent_info(finding) for finding in found])

    @routes.get("/sessions")
    async def list_sessions(after: str | None = None, limit: int = Query(default=PAGE, ge=1, le=1000)) -> SessionListResponse:
        """Session ids, newest first, a page at a time."""
        rows = await gateway.sessions.page(limit + 1, _cursor(after))
        more = _mark(rows[limit - 1]) if len(rows) > limit else None
        return SessionListResponse(sessions=[session_id for _, session_id in rows[:limit]], next=more)

    @routes.put("/session", response_model=AgentResponse, status_code=201)
    async def create_session(request: CreateSessionRequest) -> Response:
        """Make a session and answer its last user message."""
        agent = gateway.agents.get(request.agent.name)
        config = merged(SessionConfig(), agent, request.agent, request.tools)
        check_new(agent, request.messages)
        agent.spec({**config.options, **config.secrets})
        session = await gateway.sessions.create(agent, config, request.messages)
        try:
            async with session.lock:
                turn = await session.begin()
        except BaseException:
            await gateway.sessions.delete(session.id)
            raise
        return await answer(turn, request.stream, gateway.keep_alive, created=session.id, status=201)

    @routes.post("/session/{session_id}", response_model=AgentResponse)
    async def turn(session_id: str, request: SessionTurnRequest) -> Response:
        """Say something, or answer the open tool calls; the agent goes on."""
        session = await gateway.sessions.get(session_id)
        started = await take_turn(session, request.messages, request.agent, request.tools)
        return await answer(started, request.stream, gateway.keep_alive)

    @routes.get("/session/{session_id}")
    async def get_session(session_id: str, history: Literal["compacted", "full"] | None = None) -> SessionResponse:
        """A session's settings and its history: every one that its agent declares, or the one that is asked for."""
        session = await gateway.sessions.get(session_id)
        if history == "compacted" and not session.agent.info.compaction:
            raise NotFound(f"agent {session.agent.name!r} declares no compacted history; ask for history=full")
        return await _session_response(gateway, session, history)

    @routes.delete("/session/{session_id}", status_code=204)
    async def delete_session(session_id: str) -> Response:
        """Stop a session and forget it."""
        await gateway.sessions.delete(session_id)
        return Response(status_code=204)

    routes.include_router(everybody)
    return routes


async def _session_response(gateway: Gateway, session: Session, history: str | None) -> SessionResponse:
    # The state first: what has ended by now is stored by now, and the other way round it would be told in halves.
    config, state = session.config, session.state
    last = await gateway.store.last_run(session.id)
    options = {**config.options, **dict.fromkeys(config.secrets, HIDDEN)}
    return SessionResponse(
        session_id=session.id,
        agent=SessionAgent(
            name=session.agent.name,
            tools=None if config.tools is None else [ServerToolRef(name=g.name, trust=g.trust) for g in config.tools],
            options=options or None,
        ),
        tools=None if config.app_tools is None else [tool_json(tool) for tool in config.app_tools],
        history=await _histories(session, history),
        state=state,
        stop_reason="tool_use" if state == "waiting" else STOP_REASONS.get(last.stop_reason or "") if last else None,
    )


async def _histories(session: Session, wanted: str | None) -> SessionHistory:
    compacted = session.agent.info.compaction and wanted in (None, "compacted")
    return SessionHistory(
        compacted=await session.compacted_history() if compacted else None,
        full=await session.history() if wanted in (None, "full") else None,
    )


def _mark(row: tuple[float, str]) -> str:
    return base64.urlsafe_b64encode(f"{row[0]!r} {row[1]}".encode()).decode()


def _cursor(mark: str | None) -> Cursor | None:
    if mark is None:
        return None
    try:
        created, session_id = base64.urlsafe_b64decode(mark.encode()).decode().split(" ")
        return float(created), session_id
    except (ValueError, binascii.Error) as error:
        raise BadRequest("after: not a cursor of this gateway; pass the `next` of the page before, unchanged") from error
