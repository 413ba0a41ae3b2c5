"""Changes of a session that AAP does not have: a title of the user, and a fork."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from gateway.app import Gateway
from gateway.errors import BadRequest
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import SessionInfo, Tool, WireModel
from gateway.protocols.aap.sessions import session_info
from gateway.protocols.aap.settings_merge import merge_settings
from gateway.protocols.aap.turn_responses import ExchangeOf
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.route_metadata import BODY, errors
from gateway.runs.session_metadata import MAX_TITLE_LENGTH, one_line
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionSettings

Info = TypeVar("Info", bound=SessionInfo)
SESSION = "/sessions/{session_id}"


class RenameRequest(WireModel):
    """`PATCH /sessions/:id`. An empty title, or null, is the agent's title again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "Arithmetic"}, {"title": ""}]})

    title: Annotated[str, Field(max_length=MAX_TITLE_LENGTH)] | None


class ForkRequest(WireModel):
    """`POST /sessions/:id/fork`: the messages that are complete with the event `after`, or the first ones; without both all."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"after": 4}, {"messages": 2}]})

    after: Annotated[int, Field(ge=0, le=2**62)] | None = None
    messages: Annotated[int, Field(ge=0, le=2**31)] | None = None


class ForkResponse(WireModel):
    """The new session's id."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sessionId": "sess_77c1c9e2a7b4d5e8f90123456789abcd"}]})

    session_id: str = Field(alias="sessionId")


def router(gateway: Gateway, base: str, tag: str, kind: type[Info], tool: type[Tool]) -> APIRouter:
    """The routes at a base URL, with this tag. `kind` and `tool` are the version's formats of a session and of a tool."""
    _, routes = version_routers(gateway, base, tag)

    @routes.patch(SESSION, response_model=kind, responses=errors(404, *BODY))
    async def rename_session(caller: CurrentCaller, session_id: str, request: RenameRequest) -> Info:
        """Give a session a title, which precedes that of its agent."""
        session = await gateway.sessions.get(caller, session_id)
        await session.rename(one_line(request.title or ""))
        return session_info(gateway, kind, tool, await gateway.sessions.summary(session))

    @routes.post(SESSION + "/fork", status_code=201, responses=errors(404, *BODY))
    async def fork_session(caller: CurrentCaller, session_id: str, request: ForkRequest, exchange: ExchangeOf) -> ForkResponse:
        """Create a session with the agent, the settings and the messages of another. Nothing runs yet."""
        if request.after is not None and request.messages is not None:
            raise BadRequest("after and messages: both say where the fork begins; leave one of them out")
        origin = await gateway.sessions.get(caller, session_id)
        key = exchange.idempotency_key(f"fork {origin.id}", request)

        async def settings(config: SessionSettings) -> SessionSettings:
            await gateway.sessions.check_mcp_servers(origin.agent, config.mcp_servers)
            return merge_settings(config, origin.agent, None, None, gateway.agents)

        async def fork() -> Session:
            return await gateway.sessions.fork(caller, origin, settings, count=request.messages, after=request.after, key=key)

        session = await gateway.idempotency.once(
            key, fork, lambda known: gateway.sessions.get(caller, known.log_id, reading=True)
        )
        return ForkResponse(session_id=session.id)

    return routes
