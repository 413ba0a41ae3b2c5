"""Sessions of one client's connection that other nodes of the cluster have: their messages are relayed in both directions.

The gateway is a client of the other node's ACP endpoint, once for each connection and node, with the parameters of the client's
own `initialize`. It sends requests under ids of its own. When a session moves, or its node ends, the next request of the session
looks for its node again and resumes it there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pydantic_core import to_json
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from gateway.app import Gateway
from gateway.errors import LeaseLost, SessionElsewhere
from gateway.protocols.acp.node_socket import GONE, NodeUnreachable, close_node_socket, open_node_socket
from gateway.protocols.acp.rpc import ELSEWHERE, INTERNAL_ERROR, Client, Id, RpcError, error_body, rpc_error
from gateway.protocols.acp.transport.messages import parse_message
from gateway.security.authentication import Caller

if TYPE_CHECKING:
    from gateway.protocols.acp.requests import Requests

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Nodes that a request is sent to, one after the other, while its session moves."""
ANSWER_TIMEOUT = 5.0
"""Seconds for each answer of a node to a request of this gateway, which initializes a connection or opens a session again."""
_OPENS = frozenset({"session/load", "session/resume"})
_OPENS_NEW = frozenset({"session/new", "session/fork"})
_ENDS = frozenset({"session/close", "session/delete"})
_NOT_REOPENED = _OPENS | {"session/fork", "session/delete"}
"""Requests with the id of a session that need not be open on the connection."""


@dataclass(frozen=True, slots=True)
class RelayedRequest:
    """A request of the client. `attempt` is how often it was sent to a node before."""

    id: Id
    method: str
    params: Any
    attempt: int = 0

    @property
    def session_id(self) -> str | None:
        return session_of(self.params)


def session_of(params: Any) -> str | None:
    """Return the session that a message names; None if it names none."""
    found = params.get("sessionId") if isinstance(params, dict) else None
    return found if isinstance(found, str) else None


class Relays:
    """The connections to other nodes of one client's connection, and which of its sessions are there.

    `requests` returns the handlers of the sessions of this node, `begin` runs a task of the connection.
    """

    def __init__(
        self,
        gateway: Gateway,
        agent: str,
        caller: Caller,
        client: Client,
        requests: Callable[[], Awaitable[Requests]],
        begin: Callable[[Coroutine[Any, Any, None]], None],
        slash_commands: str | None,
    ) -> None:
        self.gateway, self.agent, self.caller, self.client = gateway, agent, caller, client
        self.slash_commands = slash_commands
        self.initialize: Any = {}
        """The parameters of the client's `initialize`."""
        self._requests, self._begin = requests, begin
        self._nodes: dict[str, NodeRelay] = {}
        self._connecting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._sessions: dict[str, NodeRelay] = {}
        self._opened: dict[str, dict[str, Any]] = {}
        """The parameters with which the client has opened each of its sessions, those of this node included."""
        self._lost: set[str] = set()
        """Opened sessions whose node is not known any more."""
        self._locating: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        gateway.on_node_lost.append(self._node_lost)

    # -- messages of the client -------------------------------------------------------------------------------------------

    async def handle(self, request_id: Id, method: str, params: Any, locally: Callable[[], Awaitable[None]]) -> None:
        """Send a request to the node of its session, or handle it `locally`. Raises what that raises, and RpcError."""
        await self._handle(RelayedRequest(request_id, method, params), locally)

    async def _handle(self, request: RelayedRequest, locally: Callable[[], Awaitable[None]]) -> None:
        session_id = request.session_id
        for attempt in range(request.attempt, MAX_ATTEMPTS):
            sent = replace(request, attempt=attempt)
            try:
                node = await self._node_of(session_id, request.method)
                if node is None:
                    return await locally()
                (await self._requests()).check(request.method)
                return await node.request(sent, locally)
            except SessionElsewhere as error:
                found = error
            except LeaseLost:
                if session_id is None:
                    raise
                await self._lose(session_id)
                continue
            try:
                return await (await self._at(found, request)).request(sent, locally)
            except NodeUnreachable:
                # A new session is created at another node.
                if session_id is not None or self.gateway.node is None:
                    raise
            except RpcError as error:
                await self._refused(error)
        raise RpcError(INTERNAL_ERROR, "this session moves from node to node; send the request again")

    async def _refused(self, error: RpcError) -> None:
        """Look for the nodes again, since one does not open a session: it is drained. Raises any other error."""
        if error.code != ELSEWHERE or self.gateway.node is None:
            raise error
        await self.gateway.node.directory.look_again()

    def again(self, request: RelayedRequest, locally: Callable[[], Awaitable[None]]) -> None:
        """Handle a request anew that a node has refused because it does not have the session."""

        async def handle() -> None:
            try:
                if self.gateway.node is not None:
                    await self.gateway.node.directory.look_again()
                if (session_id := request.session_id) is not None:
                    await self._lose(session_id)
                await self._handle(replace(request, attempt=request.attempt + 1), locally)
            except Exception as error:
                await self.client.respond_error(request.id, rpc_error(error))

        self._begin(handle())

    async def notify(self, method: str, params: Any) -> bool:
        """Send a notification to the node that it is for. False if it is for this node."""
        if method == "$/cancel_request":
            request_id = params.get("requestId") if isinstance(params, dict) else None
            for node in self._nodes.values():
                if (relayed := node.id_of(request_id)) is not None:
                    await node.send({"jsonrpc": "2.0", "method": method, "params": {**params, "requestId": relayed}})
                    return True
            return False
        session_id = session_of(params)
        if session_id is None:
            return False
        if (lock := self._locating.get(session_id)) is not None:
            # The request before it has to be sent first.
            async with lock:
                pass
        node_of_session = self._sessions.get(session_id)
        if node_of_session is None:
            return False
        await node_of_session.send({"jsonrpc": "2.0", "method": method, "params": params})
        return True

    def opened(self, session_id: str, params: Any, node: NodeRelay | None = None) -> None:
        """Record a session that the client has opened, at another node or at this one."""
        self._opened[session_id] = {key: params[key] for key in params if key != "sessionId"}
        self._lost.discard(session_id)
        if node is None:
            self._sessions.pop(session_id, None)
        else:
            self._sessions[session_id] = node

    def opening(self, session_id: str, params: Any, node: NodeRelay) -> Callable[[], None]:
        """Record a session that the client opens at another node. Returns what takes that back, for a node that refuses it.

        A session that the client had open stays open then, as it was.
        """
        before, at, lost = self._opened.get(session_id), self._sessions.get(session_id), session_id in self._lost
        self.opened(session_id, params, node)

        def refused() -> None:
            if before is None:
                return self.ended(session_id)
            self._opened[session_id] = before
            if lost or at is not node:
                self._sessions.pop(session_id, None)
                self._lost.add(session_id)

        return refused

    def ended(self, session_id: str) -> None:
        """Forget a session that the client has closed or deleted."""
        self._opened.pop(session_id, None)
        self._sessions.pop(session_id, None)
        self._lost.discard(session_id)

    async def close(self) -> None:
        """Close all connections to other nodes, because the client is gone."""
        if self._node_lost in self.gateway.on_node_lost:
            self.gateway.on_node_lost.remove(self._node_lost)
        await asyncio.gather(*(node.close() for node in list(self._nodes.values())))

    # -- where a session is -----------------------------------------------------------------------------------------------

    async def _node_of(self, session_id: str | None, method: str) -> NodeRelay | None:
        """Return the node of an open session, None for this one, also for a session that is not open."""
        if session_id is None:
            return None
        if session_id in self._lost and method not in _NOT_REOPENED:
            await self._locate(session_id)
        elif (lock := self._locating.get(session_id)) is not None:
            async with lock:
                pass
        return self._sessions.get(session_id)

    async def _locate(self, session_id: str) -> None:
        """Find the node of a session that the client has opened, and open it there."""
        async with self._locating.setdefault(session_id, asyncio.Lock()):
            if session_id not in self._lost:
                return
            try:
                await self.gateway.sessions.get(self.caller, session_id)
            except SessionElsewhere as error:
                node = await self._connected(error)
                await node.resume(session_id, self._opened[session_id])
                return self.opened(session_id, self._opened[session_id], node)
            await (await self._requests()).reopen({"sessionId": session_id, **self._opened[session_id]})
            self.opened(session_id, self._opened[session_id])

    async def _at(self, error: SessionElsewhere, request: RelayedRequest) -> NodeRelay:
        """Return the connection to the node that a request belongs to. A session that was open here is open there."""
        session_id = request.session_id
        if session_id is None:
            return await self._connected(error)
        async with self._locating.setdefault(session_id, asyncio.Lock()):
            node = await self._connected(error)
            await (await self._requests()).drop(session_id)
            if session_id in self._opened and request.method not in _NOT_REOPENED:
                self._lost.add(session_id)
                await node.resume(session_id, self._opened[session_id])
                self.opened(session_id, self._opened[session_id], node)
            return node

    async def _lose(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)
        await (await self._requests()).drop(session_id)
        if session_id in self._opened:
            self._lost.add(session_id)

    async def _connected(self, error: SessionElsewhere) -> NodeRelay:
        async with self._connecting.setdefault(error.node_id, asyncio.Lock()):
            node = self._nodes.get(error.node_id)
            if node is None:
                node = NodeRelay(self, error.node_id)
                try:
                    await node.open(error)
                except BaseException:
                    await node.close()
                    raise
                self._nodes[error.node_id] = node
            return node

    def _node_lost(self, node_id: str) -> None:
        node = self._nodes.get(node_id)
        if node is not None:
            self._begin(node.close())

    def node_ended(self, node: NodeRelay) -> None:
        """Forget a connection that has ended. Its sessions are looked for when they are used again."""
        if self._nodes.get(node.node_id) is node:
            del self._nodes[node.node_id]
        for session_id in [key for key, at in self._sessions.items() if at is node]:
            del self._sessions[session_id]
            self._lost.add(session_id)


class NodeRelay:
    """The connection to one other node, for one client."""

    def __init__(self, relays: Relays, node_id: str) -> None:
        self._socket: ClientConnection | None = None
        self.node_id = node_id
        self._relays, self._client = relays, relays.client
        self._last_id = 0
        self._own: dict[Id, asyncio.Future[Any]] = {}
        """The requests that this gateway makes itself."""
        self._pending: dict[Id, tuple[RelayedRequest, Callable[[], Awaitable[None]]]] = {}
        """The client's requests by the ids under which they were sent."""
        self._opening: dict[Id, Callable[[], None]] = {}
        """What takes back that these have opened a session."""
        self._asked: dict[Id, asyncio.Task[None]] = {}
        """The node's requests to the client."""
        self._reading: asyncio.Task[None] | None = None

    async def open(self, node: SessionElsewhere) -> None:
        """Connect to the node and initialize the connection as the client has. Raises RpcError."""
        relays = self._relays
        parameters = {"slash_commands": relays.slash_commands} if relays.slash_commands is not None else {}
        self._socket = await open_node_socket(relays.gateway, node, relays.agent, relays.caller, parameters)
        self._reading = asyncio.create_task(self._read(self._socket))
        await self._ask("initialize", relays.initialize)

    async def resume(self, session_id: str, params: dict[str, Any]) -> None:
        """Open a session, which the client has open, at this node. Raises RpcError."""
        await self._ask("session/resume", {"sessionId": session_id, **params})

    async def request(self, request: RelayedRequest, locally: Callable[[], Awaitable[None]]) -> None:
        """Send a request of the client. The answer is written to the client when it comes."""
        relayed = self._next_id()
        if request.method in _OPENS and (session_id := request.session_id) is not None:
            # What the node sends of it comes before the answer.
            self._opening[relayed] = self._relays.opening(session_id, request.params, self)
        self._pending[relayed] = request, locally
        await self.send({"jsonrpc": "2.0", "id": relayed, "method": request.method, "params": request.params})

    def id_of(self, request_id: Id) -> Id:
        """Return the id under which a request of the client was sent that has no answer yet; None without one."""
        return next((relayed for relayed, (request, _) in self._pending.items() if request.id == request_id), None)

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message to the node. If it is gone, the reader answers the requests."""
        if self._socket is not None:
            with suppress(WebSocketException):
                await self._socket.send(to_json(message).decode())

    async def close(self) -> None:
        """End the connection. Open requests are answered with an error."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        if self._socket is not None:
            await close_node_socket(self._socket, self._relays.gateway.clock)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def _ask(self, method: str, params: Any) -> Any:
        request_id = self._next_id()
        answer = self._own[request_id] = asyncio.get_running_loop().create_future()
        try:
            await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
            async with self._relays.gateway.clock.timeout(ANSWER_TIMEOUT):
                return await answer
        except TimeoutError:
            raise RpcError(INTERNAL_ERROR, "the node of this session does not answer; send it again") from None
        finally:
            del self._own[request_id]

    # -- messages of the node ---------------------------------------------------------------------------------------------

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for frame in socket:
                await self._receive(parse_message(frame))
            log.warning("the node %s has closed a connection for ACP", self.node_id)
        except (WebSocketException, ValueError) as error:
            log.warning("the connection for ACP to the node %s has ended: %s", self.node_id, error)
        finally:
            self._relays.node_ended(self)
            await self._end()

    async def _end(self) -> None:
        """Answer what is open, because the connection has ended."""
        for answer in self._own.values():
            if not answer.done():
                answer.set_exception(RpcError(INTERNAL_ERROR, GONE))
        for task in list(self._asked.values()):
            task.cancel()
        pending, self._pending = self._pending, {}
        self._opening.clear()
        for request, _ in pending.values():
            await self._client.respond_error(request.id, RpcError(INTERNAL_ERROR, GONE))

    async def _receive(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            await self._answered(message)
        elif "id" in message:
            # Not awaited: the user may take hours.
            task = asyncio.create_task(self._ask_client(message["id"], message["method"], message.get("params") or {}))
            self._asked[message["id"]] = task
            task.add_done_callback(lambda _: self._asked.pop(message["id"], None))
        elif message["method"] == "$/cancel_request":
            task_of_request = self._asked.get((message.get("params") or {}).get("requestId"))
            if task_of_request is not None:
                task_of_request.cancel()
        else:
            await self._client.relay(message)

    async def _answered(self, message: dict[str, Any]) -> None:
        own = self._own.get(message["id"])
        if own is not None:
            if not own.done():
                _resolve(own, message)
            return
        found = self._pending.pop(message["id"], None)
        if found is None:
            return
        request, locally = found
        error, result, session_id = message.get("error"), message.get("result"), request.session_id
        refused = self._opening.pop(message["id"], None)
        if error is not None and refused is not None:
            refused()
        if error is not None and error.get("code") == ELSEWHERE:
            return self._relays.again(request, locally)
        if error is None:
            if request.method in _OPENS_NEW and (made := session_of(result)) is not None:
                self._relays.opened(made, request.params, self)
            elif request.method in _ENDS and session_id is not None:
                self._relays.ended(session_id)
        await self._client.relay({**message, "id": request.id})

    async def _ask_client(self, request_id: Id, method: str, params: dict[str, Any]) -> None:
        answer: dict[str, Any]
        try:
            answer = {"result": await self._client.request(method, params)}
        except RpcError as error:
            answer = {"error": error_body(error.code, str(error))}
        await self.send({"jsonrpc": "2.0", "id": request_id, **answer})


def _resolve(answer: asyncio.Future[Any], message: dict[str, Any]) -> None:
    error = message.get("error")
    if error is None:
        answer.set_result(message.get("result"))
    else:
        answer.set_exception(RpcError(error.get("code", INTERNAL_ERROR), str(error.get("message"))))
