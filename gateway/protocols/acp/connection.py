"""One client of one agent, over any transport: answers `initialize`, and dispatches the other messages by method.

Protocol pages: https://agentclientprotocol.com/protocol/initialization and the pages beside it; unstable methods are RFDs there.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from gateway.gateway import Gateway
from gateway.protocols.acp.initialization import ClientFeatures, client_features, initialize_response
from gateway.protocols.acp.rpc import INVALID_REQUEST, Client, Id, RpcError, rpc_error
from gateway.security.authentication import Caller

if TYPE_CHECKING:
    from gateway.protocols.acp.requests import Requests

log = logging.getLogger(__name__)

_REQUESTS = "gateway.protocols.acp.requests"
MAX_CONCURRENT_MESSAGES = 1000
"""Requests, notifications and invalid messages handled at the same time. Prompts in progress do not count."""


class Connection:
    """The agent's side of one connection.

    The transport passes each message of the client to `receive`. `send` writes one message to the client. It is called for one
    message at a time, and may wait while the client does not read. `caller` decides which sessions the client can access.
    Raises BadRequest for an unknown agent.
    """

    def __init__(
        self, gateway: Gateway, agent_name: str, caller: Caller, send: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self._gateway, self._agent, self._caller = gateway, gateway.agents.get(agent_name), caller
        self._client = Client(send, gateway.redactor)
        self._tasks: set[asyncio.Task[None]] = set()
        self._features: ClientFeatures | None = None
        """None before `initialize`."""
        self._importing: asyncio.Task[Any] | None = None
        self._loaded: Requests | None = None
        self._loading = asyncio.Lock()

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
        if self._loaded is not None:
            await self._loaded.close()
        self._client.cancel_pending()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, request_id: Id, method: str, params: Any) -> None:
        params = {} if params is None else params
        try:
            if method == "initialize":
                await self._client.respond(request_id, await self._initialize(params))
                # The next request needs it.
                self._start_import()
            else:
                requests = await self._requests()
                await requests.handle(request_id, method, params, initialized=self._features is not None)
        except Exception as error:
            await self._client.respond_error(request_id, rpc_error(error))

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
        if self._agent.info.additional_directories is None:
            # Only the agent's program knows whether it supports them. The first session would wait for its answer too.
            await self._gateway.discovery.probe(self._agent)
        return initialize_response(self._agent, self._gateway.discovery.current(self._agent).version)

    async def _requests(self) -> Requests:
        """Return the handlers of the other methods. The first call imports them in a thread, which the next calls wait for."""
        # The lock keeps the order of the messages: those that have waited continue before one that comes then.
        async with self._loading:
            if self._loaded is None:
                await asyncio.shield(self._start_import())
                module = importlib.import_module(_REQUESTS)
                self._loaded = module.Requests(self._gateway, self._agent, self._caller, self._client)
                self._loaded.set_features(self._features or ClientFeatures())
            return self._loaded

    def _start_import(self) -> asyncio.Task[Any]:
        if self._importing is None:
            self._importing = asyncio.create_task(asyncio.to_thread(importlib.import_module, _REQUESTS))
        return self._importing


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
