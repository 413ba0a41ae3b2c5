"""Connection: one client of one agent, whatever carries the messages. What the client asks, and who does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from acp import PROTOCOL_VERSION
from acp.schema import AgentCapabilities, BaseModel, Implementation, InitializeRequest, InitializeResponse

from gateway import __version__
from gateway.gateway import Gateway
from gateway.protocols.acp.rpc import INVALID_REQUEST, METHOD_NOT_FOUND, Client, Id, RpcError, rpc_error

log = logging.getLogger(__name__)


class Connection:
    """`receive` takes each message of the client and returns at once; all that goes to it goes through `send`, in order.

    `send` may wait, for a client that reads slowly. `key_owner` is whose sessions the client may see; None for all.
    Raises BadRequest for an agent that there is not.
    """

    def __init__(
        self, gateway: Gateway, agent_name: str, key_owner: str | None, send: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self.gateway, self.key_owner = gateway, key_owner
        self.agent = gateway.agents.get(agent_name)
        self.client = Client(send)
        self._tasks: set[asyncio.Task[None]] = set()

    async def receive(self, message: dict[str, Any]) -> None:
        """One message of the client: a request, a notification, or an answer to a request of ours."""
        if not isinstance(message, dict) or not isinstance(message.get("id"), int | str | None):
            return await self.client.refuse(None, RpcError(INVALID_REQUEST, "not a message of JSON-RPC 2.0"))
        method, request_id = message.get("method"), message.get("id")
        if isinstance(method, str):
            params = message.get("params")
            self._begin(self._request(request_id, method, params) if "id" in message else self._notification(method, params))
        elif "id" in message and ("result" in message or "error" in message):
            self.client.answered(message)
        else:
            await self.client.refuse(request_id, RpcError(INVALID_REQUEST, "neither a method nor the answer to a request"))

    async def close(self) -> None:
        """The client is gone: what it was asked is dropped, runs go on."""
        self.client.gone()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, request_id: Id, method: str, params: Any) -> None:
        try:
            known = _REQUESTS.get(method)
            if known is None:
                raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r} here")
            shape, handle = known
            result = await handle(self, shape.model_validate({} if params is None else params))
        except Exception as error:
            return await self.client.refuse(request_id, rpc_error(error))
        await self.client.respond(request_id, result)

    async def _notification(self, method: str, params: Any) -> None:
        """Notifications are never answered."""

    async def _initialize(self, request: InitializeRequest) -> BaseModel:
        info = Implementation(name="portico", title="Portico", version=__version__)
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION, agent_info=info, agent_capabilities=AgentCapabilities(), auth_methods=[]
        )


_REQUESTS: dict[str, tuple[type[BaseModel], Callable[[Connection, Any], Awaitable[BaseModel]]]] = {
    "initialize": (InitializeRequest, Connection._initialize),
}
