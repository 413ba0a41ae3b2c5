"""The requests and notifications of one client, apart from `initialize`: validates their parameters and calls their handlers.

It imports the `acp` package, which takes 0.6 s of processor time. A connection imports it once its client is initialized.
Protocol pages: https://agentclientprotocol.com/protocol/initialization and the pages beside it; unstable methods are RFDs there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from acp.schema import (
    AuthenticateRequest,
    AuthenticateResponse,
    CancelNotification,
    CancelRequestNotification,
    CloseSessionRequest,
    DeleteSessionRequest,
    ListSessionsRequest,
    LogoutRequest,
    LogoutResponse,
    PromptRequest,
    PromptResponse,
    SetSessionConfigOptionBooleanRequest,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
)
from pydantic import BaseModel

from gateway.agents.configured_agents import ConfiguredAgent
from gateway.app import Gateway
from gateway.errors import BadRequest
from gateway.protocols.acp.directories import require_string_directories
from gateway.protocols.acp.initialization import LOGIN_ID, STEERING, ClientFeatures, has_login
from gateway.protocols.acp.rpc import AUTH_REQUIRED, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Client, Id, RpcError
from gateway.protocols.acp.session_creation import create_session, refuse_without_login
from gateway.protocols.acp.session_methods import OpenSessions, Reply, SetSessionModelRequest
from gateway.protocols.acp.session_requests import (
    ForkSessionRequest,
    LoadSessionRequest,
    ResumeSessionRequest,
    SetTitleRequest,
    StatusRequest,
)
from gateway.protocols.acp.session_view import PendingPrompt
from gateway.security.authentication import Caller
from gateway.sessions.session import Session

_LOGIN_REQUIRED = frozenset({"session/new", "session/load", "session/resume", "session/fork", "session/prompt"})


class Requests:
    """The client's requests and notifications, and the sessions that it has open."""

    def __init__(
        self, gateway: Gateway, agent: ConfiguredAgent, caller: Caller, client: Client, *, slash_commands: str | None = None
    ) -> None:
        self._gateway, self._agent, self._caller, self._client = gateway, agent, caller, client
        self._slash_commands = slash_commands
        self._sessions = OpenSessions(gateway, agent, caller, client)
        self._prompts: dict[Id, tuple[str, PendingPrompt]] = {}
        self._logged_out = False

    def set_features(self, features: ClientFeatures) -> None:
        """Set what the client supports, of its latest `initialize`."""
        self._sessions.features = features

    async def close(self) -> None:
        """Close all views of sessions, because the client is gone."""
        await self._sessions.close_views()

    async def leave(self, session_id: str | None) -> bool:
        """Close all views, because another node has this session, or is to create one. False if other sessions are open here."""
        if self._sessions.has_other_than(session_id):
            return False
        await self._sessions.close_views()
        return True

    async def handle(self, request_id: Id, method: str, params: Any, *, initialized: bool) -> None:
        """Handle a request, and write its answer unless it is an error, which is raised."""
        self._check(method, initialized=initialized)
        if method == "session/prompt":
            return await self._prompt(request_id, PromptRequest.model_validate(params))
        if method == "session/new":
            here = self._sessions.has_other_than(None)
            session = await create_session(self._gateway, self._agent, self._caller, self._slash_commands, params, here=here)
            self._gateway.sessions.prepare(session)
            return await self.answer_new(request_id, session)
        validate, handle = _REQUESTS[method]
        await self._answer(request_id, await handle(self, validate(params)))

    async def answer_new(self, request_id: Id, session: Session) -> None:
        """Answer a `session/new` whose session is created."""
        await self._answer(request_id, await self._sessions.open_new(session))

    async def _answer(self, request_id: Id, reply: Reply) -> None:
        await self._client.respond(request_id, reply.result)
        if reply.after_sent is not None:
            reply.after_sent()

    def _check(self, method: str, *, initialized: bool) -> None:
        """Raise RpcError for a request that the client cannot send now."""
        if method not in _REQUESTS and method not in ("session/new", "session/prompt"):
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method[:100]!r}")
        if not initialized:
            raise RpcError(INVALID_REQUEST, f"{method} was sent before initialize; send initialize first")
        if self._logged_out and method in _LOGIN_REQUIRED:
            raise RpcError(AUTH_REQUIRED, "this connection is logged out; send authenticate first")

    async def _prompt(self, request_id: Id, request: PromptRequest) -> None:
        async def answer(outcome: PromptResponse | RpcError) -> None:
            self._prompts.pop(request_id, None)
            if isinstance(outcome, RpcError):
                await self._client.respond_error(request_id, outcome)
            else:
                await self._client.respond(request_id, outcome)

        prompt = PendingPrompt(answer)
        self._prompts[request_id] = request.session_id, prompt
        try:
            await self._sessions.prompt(request, prompt)
        except BaseException:
            self._prompts.pop(request_id, None)
            raise

    async def notify(self, method: str, params: Any) -> None:
        """Handle a notification. An unknown one is ignored."""
        if method == "session/cancel":
            await self._sessions.cancel(CancelNotification.model_validate(params))
        elif method == "$/cancel_request":
            # Only prompts can be cancelled: no other request takes long. The prompt is answered with `cancelled`.
            found = self._prompts.get(CancelRequestNotification.model_validate(params).request_id)
            if found is not None:
                await self._sessions.cancel_prompt(*found)

    # -- the agent --------------------------------------------------------------------------------------------------

    async def _authenticate(self, request: AuthenticateRequest) -> Reply:
        """Check whether the agent's CLI is logged in. Raises BadRequest for an unknown method, RpcError if it is not."""
        # A client that has run a login in a terminal need not send its method, but may.
        known_ids = {LOGIN_ID, *(login.id for login in self._agent.info.program.logins)}
        if not has_login(self._agent) or request.method_id not in known_ids:
            known = f"use {LOGIN_ID!r}" if has_login(self._agent) else "this agent needs no login"
            raise BadRequest(f"methodId: unknown login method {request.method_id!r}; {known}")
        await refuse_without_login(self._gateway, self._agent, anew=True)
        self._logged_out = False
        return Reply(AuthenticateResponse())

    async def _logout(self, request: LogoutRequest) -> Reply:
        """Log this connection out. The login of the agent's CLI stays, because other clients use it."""
        self._logged_out = has_login(self._agent)
        return Reply(LogoutResponse())

    async def _steer(self, request: PromptRequest) -> Reply:
        """Send a message to the run at work. Raises RpcError for an agent that takes none while it works."""
        if not self._agent.info.capabilities.steers:
            raise RpcError(
                METHOD_NOT_FOUND,
                f"agent {self._agent.name!r} takes no messages while it works; send session/prompt, which is held",
            )
        return await self._sessions.steer(request)

    async def _set_mode(self, request: SetSessionModeRequest | SetSessionModelRequest) -> Reply:
        if isinstance(request, SetSessionModelRequest):
            return await self._sessions.set_model(request)
        return await self._sessions.set_mode(request)


def _session_params(model: type[BaseModel]) -> Callable[[Any], BaseModel]:
    def validate(params: Any) -> BaseModel:
        require_string_directories(params)
        if isinstance(params, dict) and params.get("systemPrompt") is not None:
            raise RpcError(INVALID_PARAMS, "systemPrompt: a session keeps the one that it was created with")
        return model.model_validate(params)

    return validate


def _config_option_params(params: Any) -> BaseModel:
    is_boolean = isinstance(params, dict) and params.get("type") == "boolean"
    model = SetSessionConfigOptionBooleanRequest if is_boolean else SetSessionConfigOptionSelectRequest
    return model.model_validate(params)


def _mode_params(params: Any) -> BaseModel:
    # TypeScript clients of the package's first releases (0.4.5, under both of its names) send setSessionModel by this method.
    is_model = isinstance(params, dict) and "modelId" in params and "modeId" not in params
    return (SetSessionModelRequest if is_model else SetSessionModeRequest).model_validate(params)


_REQUESTS: dict[str, tuple[Callable[[Any], Any], Callable[[Requests, Any], Awaitable[Reply]]]] = {
    "authenticate": (AuthenticateRequest.model_validate, Requests._authenticate),
    "logout": (LogoutRequest.model_validate, Requests._logout),
    "session/load": (_session_params(LoadSessionRequest), lambda c, r: c._sessions.load(r)),
    "session/resume": (_session_params(ResumeSessionRequest), lambda c, r: c._sessions.resume(r)),
    "session/fork": (_session_params(ForkSessionRequest), lambda c, r: c._sessions.fork(r)),
    "session/list": (ListSessionsRequest.model_validate, lambda c, r: c._sessions.list(r)),
    STEERING: (PromptRequest.model_validate, Requests._steer),
    "session/close": (CloseSessionRequest.model_validate, lambda c, r: c._sessions.close(r)),
    "session/delete": (DeleteSessionRequest.model_validate, lambda c, r: c._sessions.delete(r)),
    "session/set_title": (SetTitleRequest.model_validate, lambda c, r: c._sessions.set_title(r)),
    "session/status": (StatusRequest.model_validate, lambda c, r: c._sessions.status(r)),
    "session/set_mode": (_mode_params, Requests._set_mode),
    "session/set_model": (SetSessionModelRequest.model_validate, lambda c, r: c._sessions.set_model(r)),
    "session/set_config_option": (_config_option_params, lambda c, r: c._sessions.set_config_option(r)),
}
"""Validator of the parameters and handler of each request, apart from `initialize`, `session/new` and `session/prompt`."""
