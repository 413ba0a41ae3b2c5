"""The session methods of one connection: which sessions the client has open, and how each is made, found, listed and left."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os.path
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from acp.schema import (
    BaseModel,
    CancelNotification,
    CloseSessionRequest,
    CloseSessionResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    ForkSessionRequest,
    ForkSessionResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    LoadSessionRequest,
    LoadSessionResponse,
    NewSessionRequest,
    NewSessionResponse,
    PromptRequest,
    PromptResponse,
    ResumeSessionRequest,
    ResumeSessionResponse,
    SessionInfo,
    SetSessionConfigOptionBooleanRequest,
    SetSessionConfigOptionResponse,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
    SetSessionModeResponse,
)
from pydantic import ConfigDict, Field

from drivers.contract.messages import MESSAGE, Message, ToolMessage, UserMessage
from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest, Conflict, NotFound
from gateway.events.messages import CANCELLED
from gateway.gateway import Gateway
from gateway.protocols.acp.content import user_message
from gateway.protocols.acp.directories import folder_of, placed, replaced
from gateway.protocols.acp.mcp_servers import brought
from gateway.protocols.acp.options import all_tools, with_mode, with_option
from gateway.protocols.acp.rpc import Client, RpcError
from gateway.protocols.acp.session_info import SessionInfoUpdates, made_title
from gateway.protocols.acp.session_view import SessionView
from gateway.runs.pending_calls import unanswered
from gateway.security.authentication import Caller
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionSettings
from gateway.store import Cursor, SessionListRow

PAGE = 50


class SetSessionModelRequest(BaseModel):
    """`session/set_model`, which was in the protocol until June 2026; older clients send it."""

    model_config = ConfigDict(populate_by_name=True)
    session_id: str = Field(alias="sessionId")
    model_id: str = Field(alias="modelId")


@dataclass(frozen=True, slots=True)
class Reply:
    """A result, and what is to be done once the client has it."""

    result: BaseModel | dict[str, Any]
    then: Callable[[], None] | None = None


class OpenSessions:
    """One client's. Each method is one of the protocol's, by its name. `offered` is what the client does for agents."""

    offered: frozenset[str] = frozenset()
    compactions: bool = False

    def __init__(self, gateway: Gateway, agent: ConfiguredAgent, caller: Caller, client: Client) -> None:
        self._gateway, self._agent, self._caller, self._client = gateway, agent, caller, client
        self._windows: dict[str, SessionView] = {}

    async def leave(self) -> None:
        """The client is gone; the sessions and their runs stay."""
        windows, self._windows = list(self._windows.values()), {}
        await asyncio.gather(*(window.close() for window in windows))

    # -- a session comes --------------------------------------------------------------------------------------------

    async def new(self, request: NewSessionRequest) -> Reply:
        servers = brought(request.mcp_servers, self._agent)
        config = placed(SessionSettings(tools=all_tools(self._agent), mcp_servers=servers), self._agent, request)
        window = await self._open(await self._gateway.sessions.create(self._caller, self._agent, config, []))
        return Reply(NewSessionResponse(session_id=window.session.id, **window.info.settings()), self._starting(window))

    async def load(self, request: LoadSessionRequest) -> Reply:
        window = await self._reopen(request)
        await window.replay()
        return Reply(LoadSessionResponse(**window.info.settings()), self._starting(window))

    async def resume(self, request: ResumeSessionRequest) -> Reply:
        window = await self._reopen(request)
        await window.skip()
        return Reply(ResumeSessionResponse(**window.info.settings()), self._starting(window))

    async def fork(self, request: ForkSessionRequest) -> Reply:
        """A new session with the history and the settings of another; both go on by themselves."""
        if not self._agent.info.seeds:
            raise BadRequest(f"agent {self._agent.name!r} cannot be given a history, so its sessions cannot be forked")
        origin = await self._found(request.session_id)
        async with origin.lock:
            if origin.busy:
                raise Conflict("this session is at work on a prompt; fork it when that is over, or session/cancel it")
            history = await origin.history()
            config = origin.config
        cut: list[Message] = [ToolMessage(tool_call_id=call_id, content=CANCELLED) for call_id in unanswered(history)]
        servers = brought(request.mcp_servers or [], self._agent)
        config = placed(replace(config, mcp_servers=servers), self._agent, request)
        window = await self._open(await self._gateway.sessions.create(self._caller, self._agent, config, [*history, *cut]))
        await window.skip()
        return Reply(ForkSessionResponse(session_id=window.session.id, **window.info.settings()), self._starting(window))

    async def _reopen(self, request: LoadSessionRequest | ResumeSessionRequest) -> SessionView:
        session = await self._found(request.session_id)
        servers = brought(request.mcp_servers or [], self._agent)
        replaced(session.config, self._agent, request)
        before = self._windows.pop(session.id, None)
        if before is not None:
            if before.prompting:
                self._windows[session.id] = before
                raise Conflict("this session is at work on a prompt of this connection; it is open already")
            await before.close()
        async with session.lock:
            await session.configure(replace(replaced(session.config, self._agent, request), mcp_servers=servers))
        return await self._open(session)

    async def _open(self, session: Session) -> SessionView:
        finding = await self._gateway.discovery.probe(self._agent)
        about = SessionInfoUpdates(session, finding.probe, self._gateway.store)
        window = SessionView(session, self._client, about, self.offered, compactions=self.compactions)
        self._windows[session.id] = window
        return window

    def _starting(self, window: SessionView) -> Callable[[], None]:
        return lambda: window.start(lambda: self._gateway.discovery.wait_for_probe(self._agent))

    async def _found(self, session_id: str) -> Session:
        session = await self._gateway.sessions.get(self._caller, session_id)
        if session.agent is not self._agent:
            raise NotFound(
                f"session {session_id!r} is of agent {session.agent.name!r}, this connection is to {self._agent.name!r}"
            )
        return session

    # -- a session is looked for, and goes --------------------------------------------------------------------------

    async def list(self, request: ListSessionsRequest) -> Reply:
        """The agent's sessions, newest first, those that other protocols have made among them."""
        wanted = _real(request.cwd)
        owner = None if self._caller.all_sessions else self._caller.name
        found: list[SessionInfo] = []
        after = _cursor(request.cursor)
        while True:
            cards = await self._gateway.store.sessions.page_of_agent(self._agent.name, owner, PAGE, after)
            for n, card in enumerate(cards, 1):
                if wanted is None or wanted == folder_of(self._agent, card.config.get("options", {})):
                    found.append(self._info(card))
                if len(found) == PAGE and (n < len(cards) or len(cards) == PAGE):
                    return Reply(ListSessionsResponse(sessions=found, next_cursor=_mark(card)))
            if len(cards) < PAGE:
                return Reply(ListSessionsResponse(sessions=found))
            after = (cards[-1].created_at, cards[-1].id)

    def _info(self, card: SessionListRow) -> SessionInfo:
        first = MESSAGE.validate_json(card.first_user_message) if card.first_user_message else None
        used = datetime.fromtimestamp(card.used_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return SessionInfo(
            session_id=card.id,
            cwd=folder_of(self._agent, card.config.get("options", {})),
            additional_directories=card.config.get("additional_directories") or None,
            title=card.title or (made_title(first.content) if isinstance(first, UserMessage) else None),
            updated_at=used,
        )

    async def close(self, request: CloseSessionRequest) -> Reply:
        """Stop this client's prompt and free the agent; the session can be loaded again."""
        window = self._window(request.session_id)
        if window.prompting:
            await window.cancel()
            await window.no_prompt()
        await self._drop(window)
        async with window.session.lock:
            await window.session.sleep()
        return Reply(CloseSessionResponse())

    async def delete(self, request: DeleteSessionRequest) -> Reply:
        """Forget a session; one that there is not is forgotten already."""
        try:
            session = await self._found(request.session_id)
        except NotFound:
            return Reply(DeleteSessionResponse())
        window = self._windows.get(session.id)
        if window is not None:
            if window.prompting:
                await window.cancel()
                await window.no_prompt()
            await self._drop(window)
        await self._gateway.sessions.delete(self._caller, session.id)
        return Reply(DeleteSessionResponse())

    async def _drop(self, window: SessionView) -> None:
        self._windows.pop(window.session.id, None)
        await window.close()

    def _window(self, session_id: str) -> SessionView:
        window = self._windows.get(session_id)
        if window is None:
            raise NotFound(f"session {session_id!r} is not open on this connection; session/load or session/resume it first")
        return window

    # -- a session at work ------------------------------------------------------------------------------------------

    async def prompt(self, request: PromptRequest, answer: Callable[[PromptResponse | RpcError], Awaitable[None]]) -> None:
        """Start a run; its end is the answer."""
        window = self._window(request.session_id)
        await window.prompt(user_message(request.prompt, self._agent.info), answer)

    async def cancel(self, request: CancelNotification) -> None:
        await self._window(request.session_id).cancel()

    async def set_mode(self, request: SetSessionModeRequest) -> Reply:
        window = self._window(request.session_id)
        await self._configure(window, lambda config: with_mode(window.session.agent.info, config, request.mode_id))
        return Reply(SetSessionModeResponse())

    async def set_model(self, request: SetSessionModelRequest) -> Reply:
        await self._set(self._window(request.session_id), "model", request.model_id)
        return Reply({})

    async def set_config_option(
        self, request: SetSessionConfigOptionSelectRequest | SetSessionConfigOptionBooleanRequest
    ) -> Reply:
        window = self._window(request.session_id)
        if not isinstance(request.value, str):
            raise BadRequest(f"value: option {request.config_id!r} is a choice, not a switch; send one of its values")
        await self._set(window, request.config_id, request.value)
        return Reply(SetSessionConfigOptionResponse(config_options=window.info.settings()["config_options"] or []))

    async def _set(self, window: SessionView, name: str, value: str) -> None:
        await self._configure(window, lambda config: with_option(self._agent, config, name, value, window.info.models))

    async def _configure(self, window: SessionView, change: Callable[[SessionSettings], SessionSettings]) -> None:
        """Change the settings; a run under way keeps what it has begun with."""
        async with window.session.lock:
            await window.session.configure(change(window.session.config))
        await window.send_settings()


def _real(path: str | None) -> str | None:
    return None if path is None else os.path.realpath(path)


def _mark(card: SessionListRow) -> str:
    return base64.urlsafe_b64encode(f"{card.created_at!r} {card.id}".encode()).decode()


def _cursor(mark: str | None) -> Cursor | None:
    if mark is None:
        return None
    try:
        created, session_id = base64.urlsafe_b64decode(mark.encode()).decode().split(" ")
        return float(created), session_id
    except (ValueError, binascii.Error) as error:
        raise BadRequest("cursor: not one of this gateway; pass the nextCursor of the page before, unchanged") from error
