"""One client of one agent, over any transport: answers `initialize`, and dispatches the other messages by method.

Protocol pages: https://agentclientprotocol.com/protocol/initialization and the pages beside it; unstable methods are RFDs there.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.agents.configured_agents import ConfiguredAgent
from gateway.app import Gateway
from gateway.errors import BadRequest, GatewayError, NoNode
from gateway.protocols.acp.initialization import ClientFeatures, client_features, initialize_response
from gateway.protocols.acp.rpc import INVALID_REQUEST, Client, Id, RpcError, rpc_error
from gateway.protocols.acp.session_creation import create_session
from gateway.security.authentication import Caller, request_is_forwarded

if TYPE_CHECKING:
    from gateway.protocols.acp.forwarding import Forwarding
    from gateway.protocols.acp.requests import Requests

log = logging.getLogger(__name__)

MAX_CONCURRENT_MESSAGES = 1000
"""Requests, notifications and invalid messages handled at the same time. Prompts in progress do not count."""
HANDLERS = "gateway.protocols.acp.requests"
"""The module of the handlers, which imports the package `acp`: 0.25 s and 24 MB, and only clients of ACP need it."""


class Connection:
    """The agent's side of one connection.

    The transport passes each message of the client to `receive`. `send` writes one message to the client. It is called for one
    message at a time, and may wait while the client does not read. `send_all` does the same for several messages, where the
    transport writes them at once. `caller` decides which sessions the client can access. `slash_commands` is `on` or `off` if the
    client asks for slash commands in new sessions, or for none. `login_command` is the command line of the `portico acp` on this
    machine that the client has started; None if it has started none. The gateway's requests have ids above `last_request_id`.
    `absent`: only other nodes of the cluster have the agent; `open` forwards the connection to one of them before the first
    message. Raises BadRequest for an unknown agent, and for another value of `slash_commands`.

    `disconnect` is called if the connection was forwarded to another node and that has ended. The transport sets it: it ends the
    client's connection.
    """

    disconnect: Callable[[], Coroutine[Any, Any, None]]

    def __init__(
        self,
        gateway: Gateway,
        agent_name: str,
        caller: Caller,
        send: Callable[[dict[str, Any]], Awaitable[None]],
        send_all: Callable[[Sequence[dict[str, Any]]], Awaitable[None]] | None = None,
        *,
        slash_commands: str | None = None,
        login_command: Sequence[str] | None = None,
        last_request_id: int = 0,
        absent: bool = False,
    ) -> None:
        self._absent = absent
        self._forwarding: Forwarding | None = None
        self._initialize_request: dict[str, Any] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._login_command = login_command
        self._slash_commands = checked_slash_commands(slash_commands)
        self._gateway, self._caller = gateway, caller
        self._agent = _absent_agent(agent_name) if absent else gateway.agents.get(agent_name)
        self._client = Client(send, gateway.redactor, send_all, last_request_id)
        self._tasks: set[asyncio.Task[None]] = set()
        self._features: ClientFeatures | None = None
        """None before `initialize`."""
        self._loaded: Requests | None = None
        self._loading = asyncio.Lock()

    async def open(self) -> None:
        """Forward the connection to a node that has the agent, if this node has not. Raises NoNode."""
        if self._absent and (forwarding := self._may_be_forwarded()) is not None:
            await forwarding.connect()

    async def receive(self, message: dict[str, Any]) -> None:
        """Accept one message of the client: a request, a notification, or the answer to a request of the gateway.

        Returns before the message is handled. Waits while MAX_CONCURRENT_MESSAGES are being handled.
        """
        # The type of `message` is not checked by the transports.
        problem = _problem(message)
        if problem is None and message.get("method") == "initialize":
            self._initialize_request = message
            if self._forwarding is not None:
                self._forwarding.initialize = message
        if self._forwarding is not None and await self._forwarding.send(message):
            return
        if problem is None and "method" not in message:
            # Not limited: messages at work may wait for this answer.
            return self._client.resolve(message)
        while len(self._tasks) >= MAX_CONCURRENT_MESSAGES:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if problem is not None:
            return self._begin(self._client.respond_error(None, RpcError(INVALID_REQUEST, problem)))
        self._begin(self._request(message) if "id" in message else self._notification(message["method"], message.get("params")))

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
        if self._forwarding is not None:
            await self._forwarding.close()
        if self._loaded is not None:
            await self._loaded.close()
        self._client.cancel_pending()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, message: dict[str, Any]) -> None:
        request_id, method, params = message["id"], message["method"], message.get("params")
        params = {} if params is None else params
        try:
            if method == "initialize":
                await self._client.respond(request_id, await self._initialize(params))
            elif (forwarding := self._may_be_forwarded()) is not None:
                await forwarding.place(message, partial(self._handle, request_id, method, params), self._leave)
            else:
                await self._handle(request_id, method, params)
        except Exception as error:
            await self._client.respond_error(request_id, rpc_error(error))

    async def _handle(self, request_id: Id, method: str, params: Any) -> None:
        if self._absent:
            raise await self._elsewhere(params)
        if method == "session/new" and self._features is not None and not self._is_loaded():
            # The handlers are imported while the agent's program starts. At the same time as the steps to the start of its
            # process the import would delay each of them: by 0.1 to 0.2 s with claude.
            session = await create_session(self._gateway, self._agent, self._caller, self._slash_commands, params)
            await self._gateway.sessions.start_process(session)
            return await (await self._requests()).answer_new(request_id, session)
        requests = await self._requests()
        await requests.handle(request_id, method, params, initialized=self._features is not None)

    def _may_be_forwarded(self) -> Forwarding | None:
        """Return what forwards the connection to another node; None unless this is a node, and the client none."""
        # A node never forwards what was forwarded to it.
        if self._forwarding is None and self._gateway.node_keys is not None and not request_is_forwarded.get():
            # Of a cluster only.
            from gateway.protocols.acp.forwarding import Forwarding

            self._forwarding = Forwarding(
                self._gateway,
                self._agent.name,
                self._caller,
                self._client,
                self._slash_commands,
                self._begin_disconnect,
                has_agent=not self._absent,
            )
            self._forwarding.initialize = self._initialize_request
        return self._forwarding

    async def _leave(self, session_id: str | None) -> bool:
        return self._loaded is None or await self._loaded.leave(session_id)

    async def _elsewhere(self, params: Any) -> GatewayError:
        """Return the error that names the node of a request about an agent that only other nodes have. Raises GatewayError."""
        if isinstance(params, dict) and isinstance(session_id := params.get("sessionId"), str):
            await self._gateway.sessions.get(self._caller, session_id)
        return self._gateway.agent_elsewhere(self._agent.name) or NoNode(self._agent.name)

    def _begin_disconnect(self) -> None:
        self._ending = asyncio.create_task(self.disconnect())

    async def _notification(self, method: str, params: Any) -> None:
        """Handle a notification. JSON-RPC has no answer to one, so errors are logged."""
        try:
            await (await self._requests()).notify(method, params)
        except Exception as error:
            log.info("notification %s failed: %s", method[:100], rpc_error(error))

    async def _initialize(self, params: Any) -> dict[str, Any]:
        self._features = client_features(params)
        if self._loaded is not None:
            self._loaded.set_features(self._features)
        if self._agent.info.capabilities.additional_directories is None:
            # Only the agent's program knows whether it supports them. The first session would wait for its answer too.
            await self._gateway.discovery.probe(self._agent)
        version = self._gateway.discovery.current(self._agent).version
        return initialize_response(self._agent, version, self._features, self._login_command)

    def _is_loaded(self) -> bool:
        """Whether the handlers of the other methods are imported, or are being imported for this connection."""
        return self._loaded is not None or self._loading.locked() or HANDLERS in sys.modules

    async def _requests(self) -> Requests:
        """Return the handlers of the other methods. The first call imports them in a thread, and the next calls wait for it."""
        # The lock keeps the order of the messages: those that have waited continue before one that comes then.
        async with self._loading:
            if self._loaded is None:
                handlers = await asyncio.to_thread(_import_requests)
                self._loaded = handlers(
                    self._gateway, self._agent, self._caller, self._client, slash_commands=self._slash_commands
                )
                self._loaded.set_features(self._features or ClientFeatures())
            return self._loaded


def _absent_agent(name: str) -> ConfiguredAgent:
    # Of a cluster only.
    from gateway.cluster.absent_agent import AbsentAgent

    return AbsentAgent(name)


def _import_requests() -> type[Requests]:
    # See HANDLERS.
    from gateway.protocols.acp.requests import Requests

    return Requests


def checked_slash_commands(value: str | None) -> str | None:
    """Return the value of the parameter `slash_commands` of a connection. Raises BadRequest unless it is `on`, `off` or None."""
    if value not in (None, "on", "off"):
        raise BadRequest(f"slash_commands: cannot be {value[:100]!r}; choose on or off")
    return value


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
