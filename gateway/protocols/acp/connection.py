"""One client of one agent, over any transport: validates the client's messages and dispatches them by method.

Protocol pages: https://agentclientprotocol.com/protocol/initialization and the pages beside it; unstable methods are RFDs there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from acp import PROTOCOL_VERSION
from acp.schema import (
    AgentAuthCapabilities,
    AgentCapabilities,
    AuthenticateRequest,
    AuthenticateResponse,
    AuthMethodAgent,
    BaseModel,
    CancelNotification,
    CancelRequestNotification,
    CloseSessionRequest,
    DeleteSessionRequest,
    ForkSessionRequest,
    Implementation,
    InitializeRequest,
    InitializeResponse,
    ListSessionsRequest,
    LoadSessionRequest,
    LogoutCapabilities,
    LogoutRequest,
    LogoutResponse,
    McpCapabilities,
    NewSessionRequest,
    PromptCapabilities,
    PromptRequest,
    PromptResponse,
    ResumeSessionRequest,
    SessionAdditionalDirectoriesCapabilities,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionDeleteCapabilities,
    SessionForkCapabilities,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionBooleanRequest,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
)

from gateway.errors import BadRequest
from gateway.gateway import Gateway
from gateway.protocols.acp.client_files import client_methods
from gateway.protocols.acp.compactions import supports_compactions
from gateway.protocols.acp.directories import require_string_directories
from gateway.protocols.acp.rpc import AUTH_REQUIRED, INVALID_REQUEST, METHOD_NOT_FOUND, Client, Id, RpcError, rpc_error
from gateway.protocols.acp.session_methods import OpenSessions, Reply, SetSessionModelRequest
from gateway.security.authentication import Caller

log = logging.getLogger(__name__)

LOGIN = AuthMethodAgent(
    id="login",
    name="The agent's own login",
    description="Log in with the agent's own program on the machine of the gateway, then choose this.",
)
MAX_CONCURRENT_MESSAGES = 1000
"""Requests, notifications and invalid messages handled at the same time. Prompts in progress do not count."""
_LOGIN_REQUIRED = frozenset({"session/new", "session/load", "session/resume", "session/fork", "session/prompt"})


class Connection:
    """The agent's side of one connection.

    The transport passes each message of the client to `receive`. `send` writes one message to the client. It is called for one
    message at a time, and may wait while the client does not read. `caller` decides which sessions the client can access.
    Raises BadRequest for an unknown agent.
    """

    def __init__(
        self, gateway: Gateway, agent_name: str, caller: Caller, send: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self._gateway, self._agent = gateway, gateway.agents.get(agent_name)
        self._client = Client(send, gateway.redactor)
        self._sessions = OpenSessions(gateway, self._agent, caller, self._client)
        self._tasks: set[asyncio.Task[None]] = set()
        self._prompts: dict[Id, str] = {}
        self._initialized = self._logged_out = False

    async def receive(self, message: dict[str, Any]) -> None:
        """Accept one message of the client: a request, a notification, or the answer to a request of the gateway.

        Returns before the message is handled. Waits while MAX_CONCURRENT_MESSAGES are being handled.
        """
        # The type of `message` is not checked by the transports.
        problem = _problem(message)
        if problem is None and "method" not in message:
            # Not limited: messages at work may wait for this answer.
            return self._client.resolve(message)
        while len(self._tasks) >= MAX_CONCURRENT_MESSAGES:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if problem is not None:
            return self._begin(self._client.respond_error(None, RpcError(INVALID_REQUEST, problem)))
        method, params = message["method"], message.get("params")
        if "id" in message:
            self._begin(self._request(message["id"], method, params))
        else:
            self._begin(self._notification(method, params))

    async def drain(self, timeout: float) -> None:
        """Wait until all received messages are handled, at most `timeout` seconds. Prompts in progress are not waited for."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def close(self) -> None:
        """Drop the connection, because the client is gone. Its pending requests are cancelled; runs continue."""
        self._client.stop_writing()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sessions.close_views()
        self._client.cancel_pending()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, request_id: Id, method: str, params: Any) -> None:
        params = {} if params is None else params
        try:
            self._check(method)
            if method == "session/prompt":
                return await self._prompt(request_id, PromptRequest.model_validate(params))
            validate, handle = _REQUESTS[method]
            reply = await handle(self, validate(params))
        except Exception as error:
            return await self._client.respond_error(request_id, rpc_error(error))
        await self._client.respond(request_id, reply.result)
        if reply.after_sent is not None:
            reply.after_sent()

    def _check(self, method: str) -> None:
        if method not in _REQUESTS and method != "session/prompt":
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method[:100]!r}")
        if not self._initialized and method != "initialize":
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

        self._prompts[request_id] = request.session_id
        try:
            await self._sessions.prompt(request, answer)
        except BaseException:
            self._prompts.pop(request_id, None)
            raise

    async def _notification(self, method: str, params: Any) -> None:
        """Handle a notification. JSON-RPC has no answer to one, so errors are logged."""
        try:
            if method == "session/cancel":
                await self._sessions.cancel(CancelNotification.model_validate(params))
            elif method == "$/cancel_request":
                # Only prompts can be cancelled: no other request takes long. The prompt is answered with `cancelled`.
                session_id = self._prompts.get(CancelRequestNotification.model_validate(params).request_id)
                if session_id is not None:
                    await self._sessions.cancel(CancelNotification(session_id=session_id))
        except Exception as error:
            log.info("notification %s failed: %s", method[:100], rpc_error(error))

    # -- the agent --------------------------------------------------------------------------------------------------

    async def _initialize(self, params: tuple[InitializeRequest, bool]) -> Reply:
        request, self._sessions.compactions = params
        self._initialized = True
        self._sessions.client_methods = client_methods(request.client_capabilities)
        if self._agent.info.additional_directories is None:
            # Only the agent's program knows whether it supports them. The first session would wait for its answer too.
            await self._gateway.discovery.probe(self._agent)
        settings, info = self._agent.settings, self._agent.info
        version = self._gateway.discovery.current(self._agent).version
        answer = InitializeResponse(
            # The only supported version. A client that requested another one decides whether it continues.
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name=self._agent.name, title=settings.title or info.title, version=version),
            agent_capabilities=self._capabilities(),
            auth_methods=[LOGIN] if self._has_login else [],
        )
        return Reply(answer)

    def _capabilities(self) -> AgentCapabilities:
        info = self._agent.info
        transports = info.mcp if self._agent.settings.mcp != "none" else frozenset()
        return AgentCapabilities(
            load_session=True,
            prompt_capabilities=PromptCapabilities(image=info.image_data, audio=False, embedded_context=True),
            mcp_capabilities=McpCapabilities(http="http" in transports, sse="sse" in transports),
            session_capabilities=SessionCapabilities(
                list=SessionListCapabilities(),
                delete=SessionDeleteCapabilities(),
                additional_directories=SessionAdditionalDirectoriesCapabilities() if info.additional_directories else None,
                resume=SessionResumeCapabilities(),
                close=SessionCloseCapabilities(),
                fork=SessionForkCapabilities() if info.seeds else None,
            ),
            auth=AgentAuthCapabilities(logout=LogoutCapabilities() if self._has_login else None),
        )

    @property
    def _has_login(self) -> bool:
        return self._agent.info.program is not None

    async def _authenticate(self, request: AuthenticateRequest) -> Reply:
        """Check whether the agent's CLI is logged in. Raises BadRequest for an unknown method, RpcError if it is not."""
        if not self._has_login or request.method_id != LOGIN.id:
            known = f"use {LOGIN.id!r}" if self._has_login else "this agent needs no login"
            raise BadRequest(f"methodId: unknown login method {request.method_id!r}; {known}")
        await self._refuse_without_login(anew=True)
        self._logged_out = False
        return Reply(AuthenticateResponse())

    async def _logout(self, request: LogoutRequest) -> Reply:
        """Log this connection out. The login of the agent's CLI stays, because other clients use it."""
        self._logged_out = self._has_login
        return Reply(LogoutResponse())

    async def _new(self, request: NewSessionRequest) -> Reply:
        await self._refuse_without_login()
        return await self._sessions.new(request)

    async def _refuse_without_login(self, *, anew: bool = False) -> None:
        finding = await self._gateway.discovery.probe(self._agent, refresh=anew)
        if finding.probe.logged_in is False:
            raise RpcError(AUTH_REQUIRED, finding.problem or f"agent {self._agent.name!r} is not logged in")

    async def _set_mode(self, request: SetSessionModeRequest | SetSessionModelRequest) -> Reply:
        if isinstance(request, SetSessionModelRequest):
            return await self._sessions.set_model(request)
        return await self._sessions.set_mode(request)


def _problem(message: Any) -> str | None:
    """Return why this is not a JSON-RPC 2.0 message, or None if it is one."""
    if not isinstance(message, dict):
        return "not a JSON-RPC 2.0 message; send one object, not a batch"
    if isinstance(message.get("id"), bool) or not isinstance(message.get("id"), int | str | None):
        return "id: must be a number or a string"
    if "method" in message:
        return None if isinstance(message["method"], str) else "method: must be a string"
    is_answer = "id" in message and ("result" in message or "error" in message)
    return None if is_answer else "neither a request, a notification nor an answer"


def _session_params(model: type[BaseModel]) -> Callable[[Any], BaseModel]:
    def validate(params: Any) -> BaseModel:
        require_string_directories(params)
        return model.model_validate(params)

    return validate


def _initialize_params(params: Any) -> tuple[InitializeRequest, bool]:
    return InitializeRequest.model_validate(params), supports_compactions(params)


def _config_option_params(params: Any) -> BaseModel:
    is_boolean = isinstance(params, dict) and params.get("type") == "boolean"
    model = SetSessionConfigOptionBooleanRequest if is_boolean else SetSessionConfigOptionSelectRequest
    return model.model_validate(params)


def _mode_params(params: Any) -> BaseModel:
    # TypeScript clients of the package's first releases (0.4.5, under both of its names) send setSessionModel by this method.
    is_model = isinstance(params, dict) and "modelId" in params and "modeId" not in params
    return (SetSessionModelRequest if is_model else SetSessionModeRequest).model_validate(params)


_REQUESTS: dict[str, tuple[Callable[[Any], Any], Callable[[Connection, Any], Awaitable[Reply]]]] = {
    "initialize": (_initialize_params, Connection._initialize),
    "authenticate": (AuthenticateRequest.model_validate, Connection._authenticate),
    "logout": (LogoutRequest.model_validate, Connection._logout),
    "session/new": (_session_params(NewSessionRequest), Connection._new),
    "session/load": (_session_params(LoadSessionRequest), lambda c, r: c._sessions.load(r)),
    "session/resume": (_session_params(ResumeSessionRequest), lambda c, r: c._sessions.resume(r)),
    "session/fork": (_session_params(ForkSessionRequest), lambda c, r: c._sessions.fork(r)),
    "session/list": (ListSessionsRequest.model_validate, lambda c, r: c._sessions.list(r)),
    "session/close": (CloseSessionRequest.model_validate, lambda c, r: c._sessions.close(r)),
    "session/delete": (DeleteSessionRequest.model_validate, lambda c, r: c._sessions.delete(r)),
    "session/set_mode": (_mode_params, Connection._set_mode),
    "session/set_model": (SetSessionModelRequest.model_validate, lambda c, r: c._sessions.set_model(r)),
    "session/set_config_option": (_config_option_params, lambda c, r: c._sessions.set_config_option(r)),
}
"""Validator of the parameters and handler of each request, apart from `session/prompt`."""
