"""The session methods of one connection: creates, loads, lists, configures and closes sessions, and keeps those that are open.

Protocol pages: https://agentclientprotocol.com/protocol/session-setup, session-list, session-modes and session-config-options
beside it; `session/fork`, `session/resume` and `session/delete` are RFDs.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from acp.schema import (
    BaseModel,
    CancelNotification,
    CloseSessionRequest,
    CloseSessionResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    ForkSessionResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptRequest,
    PromptResponse,
    ResumeSessionResponse,
    SessionInfo,
    SetSessionConfigOptionBooleanRequest,
    SetSessionConfigOptionResponse,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
    SetSessionModeResponse,
)
from pydantic import ConfigDict, Field

from gateway.agents.configured_agents import CWD, ConfiguredAgent
from gateway.agents.folder_access import FOLDER_OF_SESSION, ChosenFolder, in_time
from gateway.app import Gateway
from gateway.errors import BadRequest, Conflict, NotFound
from gateway.protocols.acp.content import user_message
from gateway.protocols.acp.directories import with_additional_directories, with_directories, worktree_meta
from gateway.protocols.acp.initialization import ClientFeatures
from gateway.protocols.acp.modes_and_config_options import with_mode, with_option
from gateway.protocols.acp.rpc import Client, RpcError
from gateway.protocols.acp.session_creation import checked_servers
from gateway.protocols.acp.session_info import SessionInfoUpdates
from gateway.protocols.acp.session_requests import (
    ForkSessionRequest,
    LoadSessionRequest,
    ResumeSessionRequest,
    SetTitleRequest,
    StatusRequest,
)
from gateway.protocols.acp.session_view import PendingPrompt, SessionView
from gateway.protocols.cursors import decode_cursor, encode_cursor
from gateway.runs.cancellation import completed
from gateway.runs.session_metadata import displayed_title, one_line
from gateway.security.authentication import Caller
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionSettings
from gateway.store import SessionListRow
from gateway.worktrees.worktrees import SessionWorktree

log = logging.getLogger(__name__)

PROMPT_REQUIRED = "promptRequired"
"""How a steering request finds no run at work: the client sends the message by `session/prompt`."""
PAGE_SIZE = 50
"""Sessions per page of `session/list`."""


class SetSessionModelRequest(BaseModel):
    """Parameters of `session/set_model`, which was in the protocol until June 2026. Older clients send it."""

    model_config = ConfigDict(populate_by_name=True, defer_build=True)
    session_id: str = Field(alias="sessionId")
    model_id: str = Field(alias="modelId")


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a request. `after_sent` is called once it is written to the client."""

    result: BaseModel | dict[str, Any]
    after_sent: Callable[[], None] | None = None


class OpenSessions:
    """The sessions that one client has open on its connection. Each public method handles the protocol's method of its name.

    All of them raise GatewayError (see gateway/errors.py), which the connection answers with the JSON-RPC code of its type.
    """

    features: ClientFeatures = ClientFeatures()
    """What the client supports, of `initialize`."""

    def __init__(self, gateway: Gateway, agent: ConfiguredAgent, caller: Caller, client: Client) -> None:
        self._gateway, self._agent, self._caller, self._client = gateway, agent, caller, client
        self._views: dict[str, SessionView] = {}

    def has_other_than(self, session_id: str | None) -> bool:
        """Whether any session but this one is open, those not counted that this node has released or lost."""
        open_here = (view.session for view in self._views.values() if not view.lost)
        return any(session.id != session_id and not session.lost for session in open_here)

    async def close_views(self) -> None:
        """Close all views, because the client is gone. The sessions and their runs stay."""
        views, self._views = list(self._views.values()), {}
        await asyncio.gather(*(view.close() for view in views))

    # -- creation ----------------------------------------------------------------------------------------------------

    async def open_new(self, session: Session) -> Reply:
        """Return the answer of `session/new`, whose session is created."""
        view = await self._open(session)
        return Reply(NewSessionResponse(session_id=session.id, **_described(view)), self._start_following(view))

    async def load(self, request: LoadSessionRequest) -> Reply:
        view = await self._reopen(request)
        await view.replay()
        return Reply(LoadSessionResponse(**_described(view)), self._start_following(view))

    async def resume(self, request: ResumeSessionRequest) -> Reply:
        view = await self._reopen(request)
        await view.skip()
        return Reply(ResumeSessionResponse(**_described(view)), self._start_following(view))

    async def fork(self, request: ForkSessionRequest) -> Reply:
        """Create a session with the history and the settings of another. The two are independent from then on.

        A call without a result gets a result that states its cancellation.
        """
        origin = await self._found(request.session_id)

        async def changed(config: SessionSettings) -> SessionSettings:
            servers = await checked_servers(self._gateway, self._agent, request)
            own = replace(config, mcp_servers=servers)
            with_folders = partial(with_directories, own, self._agent, request, any_folder=self._caller.any_folder)
            return await in_time(with_folders, FOLDER_OF_SESSION)

        session = await self._gateway.sessions.fork(self._caller, origin, changed)
        self._gateway.sessions.prepare(session)
        view = await self._open(session)
        await view.skip()
        return Reply(ForkSessionResponse(session_id=view.session.id, **_described(view)), self._start_following(view))

    async def _reopen(self, request: LoadSessionRequest | ResumeSessionRequest) -> SessionView:
        session = await self._found(request.session_id)
        servers = await checked_servers(self._gateway, self._agent, request, session.id)
        # Check the request before the current view is closed.
        await self._with_directories(session, request)
        current = self._views.pop(session.id, None)
        if current is not None:
            if current.prompting:
                self._views[session.id] = current
                raise Conflict("this session is open on this connection already, with a prompt in progress")
            await current.close()
        async with session.lock:
            config = await self._with_directories(session, request)
            await session.configure(replace(config, mcp_servers=servers))
        self._gateway.sessions.prepare(session)
        return await self._open(session)

    async def _with_directories(self, session: Session, request: LoadSessionRequest | ResumeSessionRequest) -> SessionSettings:
        any_folder = self._caller.any_folder
        changed = partial(with_additional_directories, session.config, self._agent, request, any_folder=any_folder)
        return await in_time(changed, FOLDER_OF_SESSION)

    async def _open(self, session: Session) -> SessionView:
        finding = await self._gateway.discovery.probe(self._agent)
        about = SessionInfoUpdates(session, finding.probe, self._gateway.store)
        cwd = await in_time(session.working_directory, FOLDER_OF_SESSION)
        view = SessionView(session, self._client, about, self.features, cwd)
        self._views[session.id] = view
        return view

    def _start_following(self, view: SessionView) -> Callable[[], None]:
        return lambda: view.start(lambda: self._gateway.discovery.wait_for_probe(self._agent))

    async def _found(self, session_id: str) -> Session:
        try:
            session = await self._gateway.sessions.get(self._caller, session_id, here=self.has_other_than(None))
        except NotFound:
            raise NotFound(f"there is no session {session_id!r}; session/list has those that exist") from None
        if session.agent is not self._agent:
            raise NotFound(
                f"session {session_id!r} belongs to agent {session.agent.name!r}, this connection to {self._agent.name!r}"
            )
        return session

    # -- listing and closing ----------------------------------------------------------------------------------------

    async def list(self, request: ListSessionsRequest) -> Reply:
        """List the agent's sessions, newest first, those created over other protocols included."""
        cwd = None if request.cwd is None else await in_time(partial(os.path.realpath, request.cwd), "the folder `cwd`")
        owner = None if self._caller.all_sessions else self._caller.name
        sessions: list[SessionInfo] = []
        after = decode_cursor(request.cursor, parameter="cursor", source="nextCursor")
        while True:
            rows = await self._gateway.store.sessions.page_of_agent(self._agent.name, owner, PAGE_SIZE, after)
            folders = await self._gateway.sessions.listed_folders.resolve(map(self._chosen, rows))
            for n, row in enumerate(rows, 1):
                folder = folders[self._chosen(row)] or ""
                if cwd is None or cwd in (folder, worktree_folder_of(row)):
                    sessions.append(self._info(row, folder))
                if len(sessions) == PAGE_SIZE and (n < len(rows) or len(rows) == PAGE_SIZE):
                    return Reply(ListSessionsResponse(sessions=sessions, next_cursor=encode_cursor(row.created_at, row.id)))
            if len(rows) < PAGE_SIZE:
                return Reply(ListSessionsResponse(sessions=sessions))
            after = (rows[-1].created_at, rows[-1].id)

    def _chosen(self, row: SessionListRow) -> ChosenFolder:
        options = self._agent.without_locked(row.config.get("options", {}))
        return ChosenFolder(self._agent.name, options.get(CWD.name), row.config.get("workspace_key"))

    def _info(self, row: SessionListRow, folder: str) -> SessionInfo:
        used = datetime.fromtimestamp(row.used_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return SessionInfo(
            session_id=row.id,
            cwd=folder,
            additional_directories=row.config.get("additional_directories") or None,
            title=displayed_title(row),
            updated_at=used,
            field_meta=worktree_meta(SessionWorktree.from_json(row.config.get("worktree"))),
        )

    async def close(self, request: CloseSessionRequest) -> Reply:
        """Cancel this client's prompt, and stop the agent's process. The session can be loaded again."""
        view = self._view(request.session_id)
        # Also if the client disconnects meanwhile: otherwise the agent and its terminals would stay.
        await completed(self._stop_agent(view))
        await view.no_prompt()
        await self._drop(view)
        return Reply(CloseSessionResponse())

    async def _stop_agent(self, view: SessionView) -> None:
        if view.prompting:
            await view.cancel()
        async with view.session.lock:
            await view.session.sleep()

    async def delete(self, request: DeleteSessionRequest) -> Reply:
        """Delete a session. An unknown session is not an error."""
        try:
            session = await self._found(request.session_id)
        except NotFound:
            return Reply(DeleteSessionResponse())
        view = self._views.get(session.id)
        if view is not None:
            if view.prompting:
                await view.cancel()
                await view.no_prompt()
            await self._drop(view)
        await completed(self._gateway.sessions.delete(self._caller, session.id))
        return Reply(DeleteSessionResponse())

    async def set_title(self, request: SetTitleRequest) -> Reply:
        """Give a session a title, which precedes that of its agent. It need not be open on this connection."""
        title = one_line(request.title)
        session = await self._found(request.session_id)
        await session.rename(title)
        return Reply({"title": title or ""})

    async def status(self, request: StatusRequest) -> Reply:
        """Return whether an agent or a run of the session is in memory."""
        session = await self._found(request.session_id)
        is_open = session.id in self._views or session.busy or session.has_agent
        return Reply({"status": "open" if is_open else "saved"})

    async def _drop(self, view: SessionView) -> None:
        self._views.pop(view.session.id, None)
        await view.close()

    def _view(self, session_id: str) -> SessionView:
        view = self._views.get(session_id)
        if view is None or view.lost:
            raise NotFound(f"session {session_id!r} is not open on this connection; send session/load or session/resume first")
        return view

    # -- open sessions ----------------------------------------------------------------------------------------------

    async def prompt(self, request: PromptRequest, prompt: PendingPrompt) -> None:
        """Start a run, or hold the prompt while another one is under way. `prompt` is answered when its run has ended."""
        view = self._view(request.session_id)
        await view.prompt(user_message(request.prompt, self._agent.info), prompt)

    async def steer(self, request: PromptRequest) -> Reply:
        """Send a message to the run at work. Without one, begin a run with it, or answer that the client must send a prompt."""
        options = (request.field_meta or {}).get("steering")
        idle = options.get("idleBehavior") if isinstance(options, dict) else None
        if idle not in (None, PROMPT_REQUIRED):
            raise BadRequest(f"_meta.steering.idleBehavior: cannot be {idle!r}; leave it out, or send {PROMPT_REQUIRED!r}")
        view, message = self._view(request.session_id), user_message(request.prompt, self._agent.info)
        if await view.steer(message):
            return Reply({"outcome": "injected"})
        if idle == PROMPT_REQUIRED:
            return Reply({"outcome": PROMPT_REQUIRED, "reason": "noRunningTurn"})
        await view.prompt(message, PendingPrompt(_log_failure))
        return Reply({"outcome": "startedNewTurn"})

    async def cancel_prompt(self, session_id: str, prompt: PendingPrompt) -> None:
        """Cancel one prompt, held or in progress."""
        await self._view(session_id).cancel_prompt(prompt)

    async def cancel(self, request: CancelNotification) -> None:
        await self._view(request.session_id).cancel()

    async def set_mode(self, request: SetSessionModeRequest) -> Reply:
        view = self._view(request.session_id)
        await self._configure(view, lambda config: with_mode(view.session.agent, config, request.mode_id))
        return Reply(SetSessionModeResponse())

    async def set_model(self, request: SetSessionModelRequest) -> Reply:
        await self._set(self._view(request.session_id), "model", request.model_id)
        return Reply({})

    async def set_config_option(
        self, request: SetSessionConfigOptionSelectRequest | SetSessionConfigOptionBooleanRequest
    ) -> Reply:
        view = self._view(request.session_id)
        if not isinstance(request.value, str):
            raise BadRequest(f"value: option {request.config_id!r} is a choice, not a boolean; send one of its values")
        await self._set(view, request.config_id, request.value)
        return Reply(SetSessionConfigOptionResponse(config_options=view.info.settings()["config_options"] or []))

    async def _set(self, view: SessionView, name: str, value: str) -> None:
        await self._configure(view, lambda config: with_option(self._agent, config, name, value, view.info.models))

    async def _configure(self, view: SessionView, change: Callable[[SessionSettings], SessionSettings]) -> None:
        """Change the settings. A run in progress keeps those that it was started with."""
        async with view.session.lock:
            await view.session.configure(change(view.session.config))
        await view.send_settings()
        self._gateway.sessions.prepare(view.session)


def _described(view: SessionView) -> dict[str, Any]:
    """What the response to a request that opens a session has."""
    return {**view.info.settings(), "field_meta": worktree_meta(view.session.config.worktree)}


async def _log_failure(outcome: PromptResponse | RpcError) -> None:
    """Take the result of a run that a steering request has begun, which no request waits for."""
    if isinstance(outcome, RpcError):
        log.info("the run of a steering message failed: %s", outcome)


def worktree_folder_of(row: SessionListRow) -> str | None:
    """Return the folder in its worktree that a stored session works in; None if it has none."""
    worktree = SessionWorktree.from_json(row.config.get("worktree"))
    return None if worktree is None else worktree.folder
