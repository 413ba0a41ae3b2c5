"""Connection: one client of one agent, whatever carries the messages. What the client asks, and who does it."""

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
from gateway.protocols.acp.client_services import offered
from gateway.protocols.acp.compactions import takes_compactions
from gateway.protocols.acp.directories import refuse_other_than_texts
from gateway.protocols.acp.rpc import AUTH_REQUIRED, INVALID_REQUEST, METHOD_NOT_FOUND, Client, Id, RpcError, rpc_error
from gateway.protocols.acp.sessions import OpenSessions, Reply, SetSessionModelRequest
from gateway.security.authentication import Caller

log = logging.getLogger(__name__)

LOGIN = AuthMethodAgent(
    id="login",
    name="The agent's own login",
    description="Log in with the agent's own program on the machine of the gateway, then choose this.",
)
AT_ONCE = 1000
"""How many requests and notifications are worked on at a time; prompts under way do not count."""
_NEED_LOGIN = frozenset({"session/new", "session/load", "session/resume", "session/fork", "session/prompt"})


class Connection:
    """`receive` takes each message of the client and does not wait for it to be done; all that goes to it goes through
    `send`, in order.

    `send` may wait, for a client that reads slowly. `caller` is whose sessions the client may see.
    Raises BadRequest for an agent that there is not.
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
        """One message of the client: a request, a notification, or an answer to one of ours. Waits while there are too many."""
        # The annotation is a promise of whoever carries the messages, but what is in them is the client's.
        wrong = _malformed(message)
        if wrong is not None:
            return self._begin(self._client.refuse(None, RpcError(INVALID_REQUEST, wrong)))
        if "method" not in message:
            return self._client.answered(message)
        method, params = message["method"], message.get("params")
        while len(self._tasks) >= AT_ONCE:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if "id" in message:
            self._begin(self._request(message["id"], method, params))
        else:
            self._begin(self._notification(method, params))

    async def settle(self, seconds: float) -> None:
        """Let what was received be answered, apart from prompts under way: the client says no more, but it may still read."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self) -> None:
        """The client is gone: what it was asked is dropped, runs go on."""
        self._client.gone()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sessions.leave()
        self._client.forget()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, request_id: Id, method: str, params: Any) -> None:
        given = {} if params is None else params
        try:
            self._check(method)
            if method == "session/prompt":
                return await self._prompt(request_id, PromptRequest.model_validate(given))
            shape, handle = _REQUESTS[method]
            reply = await handle(self, shape(given))
        except Exception as error:
            return await self._client.refuse(request_id, rpc_error(error))
        await self._client.respond(request_id, reply.result)
        if reply.then is not None:
            reply.then()

    def _check(self, method: str) -> None:
        if method not in _REQUESTS and method != "session/prompt":
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {method[:100]!r} here")
        if not self._initialized and method != "initialize":
            raise RpcError(INVALID_REQUEST, f"{method} came before initialize; send that first")
        if self._logged_out and method in _NEED_LOGIN:
            raise RpcError(AUTH_REQUIRED, "this connection is logged out; send authenticate first")

    async def _prompt(self, request_id: Id, request: PromptRequest) -> None:
        async def answer(outcome: PromptResponse | RpcError) -> None:
            self._prompts.pop(request_id, None)
            if isinstance(outcome, RpcError):
                await self._client.refuse(request_id, outcome)
            else:
                await self._client.respond(request_id, outcome)

        self._prompts[request_id] = request.session_id
        try:
            await self._sessions.prompt(request, answer)
        except BaseException:
            self._prompts.pop(request_id, None)
            raise

    async def _notification(self, method: str, params: Any) -> None:
        """Notifications are never answered, whatever is wrong with them."""
        try:
            if method == "session/cancel":
                await self._sessions.cancel(CancelNotification.model_validate(params))
            elif method == "$/cancel_request":
                # Of all requests only a prompt takes long; it is answered with `cancelled`.
                session_id = self._prompts.get(CancelRequestNotification.model_validate(params).request_id)
                if session_id is not None:
                    await self._sessions.cancel(CancelNotification(session_id=session_id))
        except Exception as error:
            log.info("a notification %s came to nothing: %s", method[:100], rpc_error(error))

    # -- the agent --------------------------------------------------------------------------------------------------

    async def _initialize(self, greeting: tuple[InitializeRequest, bool]) -> Reply:
        request, self._sessions.compactions = greeting
        self._initialized = True
        self._sessions.offered = offered(request.client_capabilities)
        if self._agent.info.additional_directories is None:
            # Only its program can say whether it takes them; the first session would wait for its answer too.
            await self._gateway.discovery.probe(self._agent)
        settings, info = self._agent.settings, self._agent.info
        known = self._gateway.discovery.current(self._agent)
        shown = Implementation(name=self._agent.name, title=settings.title or info.title, version=known.version)
        answer = InitializeResponse(
            # The one version that there is, whatever the client has asked for; it decides whether it goes on.
            protocol_version=PROTOCOL_VERSION,
            agent_info=shown,
            agent_capabilities=self._capabilities(),
            auth_methods=[LOGIN] if self._has_login else [],
        )
        return Reply(answer)

    def _capabilities(self) -> AgentCapabilities:
        info = self._agent.info
        return AgentCapabilities(
            load_session=True,
            prompt_capabilities=PromptCapabilities(image=info.image_data, audio=False, embedded_context=True),
            mcp_capabilities=McpCapabilities(http="http" in info.mcp, sse="sse" in info.mcp),
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
        """The login is the CLI's own: this looks whether it is there."""
        if not self._has_login or request.method_id != LOGIN.id:
            offer = f"there is {LOGIN.id!r}" if self._has_login else "this agent needs none"
            raise BadRequest(f"methodId: there is no way {request.method_id!r} to log in; {offer}")
        await self._refuse_without_login(anew=True)
        self._logged_out = False
        return Reply(AuthenticateResponse())

    async def _logout(self, request: LogoutRequest) -> Reply:
        """For this connection; the CLI's own login is the user's, and others work with it."""
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


def _malformed(message: Any) -> str | None:
    """What is wrong with a message, before anything is known of its method."""
    if not isinstance(message, dict):
        return "not a message of JSON-RPC 2.0; send one object, not a batch"
    if isinstance(message.get("id"), bool) or not isinstance(message.get("id"), int | str | None):
        return "id: a number or a text"
    if "method" in message:
        return None if isinstance(message["method"], str) else "method: a text"
    answers = "id" in message and ("result" in message or "error" in message)
    return None if answers else "neither a method nor the answer to a request"


def _opening(shape: type[BaseModel]) -> Callable[[Any], BaseModel]:
    def read(given: Any) -> BaseModel:
        refuse_other_than_texts(given)
        return shape.model_validate(given)

    return read


def _greeting(given: Any) -> tuple[InitializeRequest, bool]:
    return InitializeRequest.model_validate(given), takes_compactions(given)


def _config_option(given: Any) -> BaseModel:
    switch = isinstance(given, dict) and given.get("type") == "boolean"
    model = SetSessionConfigOptionBooleanRequest if switch else SetSessionConfigOptionSelectRequest
    return model.model_validate(given)


def _mode(given: Any) -> BaseModel:
    # The TypeScript package's first releases (0.4.5, under both of its names) send setSessionModel by this method.
    model = isinstance(given, dict) and "modelId" in given and "modeId" not in given
    return (SetSessionModelRequest if model else SetSessionModeRequest).model_validate(given)


_REQUESTS: dict[str, tuple[Callable[[Any], Any], Callable[[Connection, Any], Awaitable[Reply]]]] = {
    "initialize": (_greeting, Connection._initialize),
    "authenticate": (AuthenticateRequest.model_validate, Connection._authenticate),
    "logout": (LogoutRequest.model_validate, Connection._logout),
    "session/new": (_opening(NewSessionRequest), Connection._new),
    "session/load": (_opening(LoadSessionRequest), lambda c, r: c._sessions.load(r)),
    "session/resume": (_opening(ResumeSessionRequest), lambda c, r: c._sessions.resume(r)),
    "session/fork": (_opening(ForkSessionRequest), lambda c, r: c._sessions.fork(r)),
    "session/list": (ListSessionsRequest.model_validate, lambda c, r: c._sessions.list(r)),
    "session/close": (CloseSessionRequest.model_validate, lambda c, r: c._sessions.close(r)),
    "session/delete": (DeleteSessionRequest.model_validate, lambda c, r: c._sessions.delete(r)),
    "session/set_mode": (_mode, Connection._set_mode),
    "session/set_model": (SetSessionModelRequest.model_validate, lambda c, r: c._sessions.set_model(r)),
    "session/set_config_option": (_config_option, lambda c, r: c._sessions.set_config_option(r)),
}
