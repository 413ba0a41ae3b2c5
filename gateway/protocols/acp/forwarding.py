"""Connections of clients that another node of the cluster serves.

A connection has one node. It is that of its first session: a request that belongs to another node takes the whole connection
there, as long as no session is open on it. The node that the client is connected to opens a WebSocket to the other node, sends
the client's own `initialize`, and from then on forwards all messages in both directions as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pydantic_core import to_json
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from gateway.app import Gateway
from gateway.cluster.forwarding.node_socket import GONE, SocketRefused, SocketUnreachable, close_node_socket, open_node_socket
from gateway.cluster.forwarding.wire import LAST_REQUEST_ID
from gateway.errors import NoNode, SessionElsewhere
from gateway.protocols.acp.rpc import ELSEWHERE, INTERNAL_ERROR, Client, Id, RpcError
from gateway.protocols.acp.transport.messages import parse_message
from gateway.security.authentication import Caller

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Nodes that a connection is forwarded to for one request, one after the other, while its session moves."""
ANSWER_TIMEOUT = 5.0
"""Seconds for the answer of a node to `initialize`."""
LAST_MESSAGES_TIMEOUT = 5.0
"""Seconds for a client to receive what was received of a node that is lost."""
PLACED = frozenset({"session/new", "session/load", "session/resume", "session/fork", "session/delete"})
"""Requests that may belong to another node although no session is open there on the connection."""


def session_of(message: dict[str, Any]) -> str | None:
    """Return the session that a message names; None if it names none."""
    params = message.get("params")
    found = params.get("sessionId") if isinstance(params, dict) else None
    return found if isinstance(found, str) else None


class Forwarding:
    """Finds the node of one client's connection, and forwards the connection there.

    `has_agent` is whether this node has the agent; otherwise call `connect` first. `disconnect` is called when the other node has
    ended. `initialize` is the client's latest request of that method.
    """

    def __init__(
        self,
        gateway: Gateway,
        agent: str,
        caller: Caller,
        client: Client,
        slash_commands: str | None,
        disconnect: Callable[[], None],
        *,
        has_agent: bool,
    ) -> None:
        self.initialize: dict[str, Any] | None = None
        self._gateway, self._agent, self._caller, self._client = gateway, agent, caller, client
        self._slash_commands, self._disconnect, self._has_agent = slash_commands, disconnect, has_agent
        self._node: NodeConnection | None = None
        self._placing = asyncio.Lock()

    async def connect(self) -> None:
        """Forward the connection to a node that offers the agent. Raises NoNode."""
        refused = set[str]()
        for _ in range(MAX_ATTEMPTS):
            node = self._gateway.agent_elsewhere(self._agent, refused)
            if node is None:
                break
            try:
                await self._forward(node)
                return
            except SocketUnreachable:
                continue
            except (RpcError, SocketRefused):
                # Its log has the reason: it has no more room for connections, or another node key.
                refused.add(node.node_id)
        raise NoNode(self._agent)

    async def send(self, message: Any) -> bool:
        """Send a message of the client to the other node. False if it is to be handled here, or by `place`."""
        if self._node is None or (not self._node.has_session and isinstance(message, dict) and message.get("method") in PLACED):
            return False
        await self._node.send(message)
        return True

    async def place(
        self,
        message: dict[str, Any],
        handle: Callable[[], Awaitable[None]],
        leave: Callable[[str | None], Awaitable[bool]],
    ) -> None:
        """Have a request answered by this node (`handle`) or by another one, to which the connection is forwarded then.

        `leave` closes what is open here but the session of the request, and returns false if other sessions are open. Raises what
        `handle` raises, and RpcError.
        """
        if message["method"] not in PLACED:
            return await handle()
        # One at a time: two requests could take the connection to two nodes.
        async with self._placing:
            if self._node is not None and await self._node.place(message):
                return
            problem: Exception = RpcError(INTERNAL_ERROR, "this session moves from node to node; send the request again")
            for _ in range(MAX_ATTEMPTS):
                try:
                    if await self._place(message, handle, leave):
                        return
                except SocketUnreachable as error:
                    if session_of(message) is not None:
                        raise
                    # A new session is created at another node.
                    problem = error
            if self._has_agent:
                await self._leave_node()
            raise problem

    async def _place(
        self,
        message: dict[str, Any],
        handle: Callable[[], Awaitable[None]],
        leave: Callable[[str | None], Awaitable[bool]],
    ) -> bool:
        """Try once to do as `place`. False if the other node refuses the request."""
        if self._node is not None:
            await self._look_again()
        try:
            await handle()
            return True
        except SessionElsewhere as error:
            node = error
        if not await leave(session_of(message)):
            raise node
        return await (await self._forward(node)).place(message)

    async def close(self) -> None:
        """End the connection to the other node, because the client is gone."""
        await self._leave_node()

    async def _look_again(self) -> None:
        """Look for the nodes again, because one has refused a request: it has not the session any more, or is drained."""
        if self._has_agent:
            await self._leave_node()
        if self._gateway.node is not None:
            await self._gateway.node.directory.look_again()

    async def _forward(self, node: SessionElsewhere) -> NodeConnection:
        """Forward the connection to a node. Raises RpcError and GatewayError; the connection stays where it is then."""
        parameters = {LAST_REQUEST_ID: str(self._client.last_request_id)}
        if self._slash_commands is not None:
            parameters["slash_commands"] = self._slash_commands
        socket = await open_node_socket(self._gateway, node, self._agent, self._caller, parameters)
        try:
            if self.initialize is not None:
                await self._initialize(socket, self.initialize)
            if self._gateway.node is not None and not self._gateway.node.directory.lives(node.node_id):
                # It was lost while it was connected to.
                raise SocketUnreachable
        except BaseException:
            await close_node_socket(socket, self._gateway.clock)
            raise
        await self._leave_node()
        self._node = NodeConnection(self._gateway, node.node_id, socket, self._client, self._disconnect)
        return self._node

    async def _initialize(self, socket: ClientConnection, message: dict[str, Any]) -> None:
        try:
            async with self._gateway.clock.timeout(ANSWER_TIMEOUT):
                await socket.send(to_json(message).decode())
                answer = parse_message(await socket.recv())
        except TimeoutError:
            raise RpcError(INTERNAL_ERROR, "the node of this session does not answer; send it again") from None
        except WebSocketException:
            raise SocketUnreachable from None
        if (error := answer.get("error")) is not None:
            raise RpcError(error["code"], error["message"])

    async def _leave_node(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.close()


class NodeConnection:
    """The WebSocket to the node that serves a client's connection. `ended` is called when that node has ended, or is lost."""

    def __init__(
        self, gateway: Gateway, node_id: str, socket: ClientConnection, client: Client, ended: Callable[[], None]
    ) -> None:
        self.has_session = False
        """Whether the client has opened a session there: the connection is of that node then."""
        self._gateway, self._node_id, self._socket, self._client, self._ended = gateway, node_id, socket, client, ended
        self._placed: dict[Id, tuple[str, asyncio.Future[bool]]] = {}
        """Method and outcome of requests of `PLACED` that are not answered yet."""
        self._sending = False
        self._closed = False
        self._losing: asyncio.Task[None] | None = None
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(self._read_to_end)
        gateway.on_node_lost.append(self._node_lost)

    async def send(self, message: Any) -> None:
        """Send a message of the client. Waits while the node does not read."""
        # The reader notices the end of the node.
        with suppress(WebSocketException):
            await self._socket.send(to_json(message).decode())

    async def place(self, message: dict[str, Any]) -> bool:
        """Send a request of `PLACED`. False if the node refuses it and the client has no session there. Raises RpcError."""
        if self.has_session:
            await self.send(message)
            return True
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._placed[message["id"]] = message["method"], outcome
        if self._reading.done():
            raise RpcError(INTERNAL_ERROR, GONE)
        await self.send(message)
        return await outcome

    async def close(self) -> None:
        """End the connection. `ended` is not called."""
        self._closed = True
        self._stop_noticing()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await close_node_socket(self._socket, self._gateway.clock)

    async def _read(self) -> None:
        try:
            async for frame in self._socket:
                await self._receive(parse_message(frame))
            log.info("the node %s has closed an ACP connection", self._node_id)
        except WebSocketException as error:
            log.warning("an ACP connection to the node %s has ended: %s", self._node_id, error)

    async def _receive(self, message: dict[str, Any]) -> None:
        method, outcome = self._placed.pop(message.get("id"), ("", None)) if "method" not in message else ("", None)
        if outcome is not None:
            error = message.get("error")
            refused = not self.has_session and error is not None and error.get("code") == ELSEWHERE
            self.has_session = self.has_session or (error is None and method != "session/delete")
            if not outcome.done():
                outcome.set_result(not refused)
            if refused:
                return
        self._sending = True
        await self._client.forward(message)
        self._sending = False

    def _read_to_end(self, reading: asyncio.Task[None]) -> None:
        for _, outcome in self._placed.values():
            if not outcome.done():
                outcome.set_exception(RpcError(INTERNAL_ERROR, GONE))
        if not reading.cancelled() and (error := reading.exception()) is not None:
            log.error("an ACP connection that the node %s serves has failed", self._node_id, exc_info=error)
        if not self._closed:
            self._stop_noticing()
            self._ended()

    def _node_lost(self, node_id: str) -> None:
        if node_id == self._node_id and self._losing is None:
            self._losing = asyncio.create_task(self._lose())

    async def _lose(self) -> None:
        if self._sending:
            # There may be more behind it that the node has sent before its end.
            await self._gateway.clock.wait((self._reading,), LAST_MESSAGES_TIMEOUT)
        self._reading.cancel()

    def _stop_noticing(self) -> None:
        if self._node_lost in self._gateway.on_node_lost:
            self._gateway.on_node_lost.remove(self._node_lost)
