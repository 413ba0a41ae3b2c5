"""A WebSocket whose client wants an agent that only another node of the cluster has: all its frames are passed on, both ways."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException
from websockets.frames import CloseCode
from websockets.protocol import State

from gateway.app import Gateway
from gateway.errors import NoNode, Unauthorized
from gateway.protocols.acp.node_socket import NodeUnreachable, open_node_socket
from gateway.protocols.acp.rpc import RpcError
from gateway.protocols.acp.transport.websocket_frames import GOING_AWAY, Frames
from gateway.protocols.forwarding.wire import WHOLE_CONNECTION
from gateway.security.authentication import Caller

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Nodes that are tried one after the other."""
LAST_FRAMES_TIMEOUT = 5.0
"""Seconds for a client to receive what was received of a node that has closed the connection, or has stopped."""
ABOUT_FRAMES = {CloseCode.UNSUPPORTED_DATA, CloseCode.INVALID_DATA, CloseCode.POLICY_VIOLATION, CloseCode.MESSAGE_TOO_BIG}
"""Close codes that say what is wrong with a frame of the client."""


async def connect(gateway: Gateway, agent: str, caller: Caller, parameters: Mapping[str, str]) -> tuple[str, ClientConnection]:
    """Connect to a node that offers the agent, and return its id too. `parameters` are those of the client's URL.

    Raises NoNode.
    """
    passed_on = {name: parameters[name] for name in ("slash_commands",) if name in parameters}
    refused = set[str]()
    for _ in range(MAX_ATTEMPTS):
        node = gateway.agent_elsewhere(agent, refused)
        if node is None:
            break
        try:
            return node.node_id, await open_node_socket(gateway, node, agent, caller, {**passed_on, WHOLE_CONNECTION: "on"})
        except NodeUnreachable:
            continue
        except RpcError:
            # Its log has the reason: it has no more room for connections, or another node key.
            refused.add(node.node_id)
    raise NoNode(agent)


async def pass_on(gateway: Gateway, client: Frames, node_id: str, node: ClientConnection) -> None:
    """Pass all frames on until one side closes or the node is lost; then the client is disconnected, and its sessions stay."""
    lost = asyncio.Event()

    def node_lost(lost_id: str) -> None:
        if lost_id == node_id:
            lost.set()

    gateway.on_node_lost.append(node_lost)
    if gateway.node is not None and not gateway.node.directory.lives(node_id):
        # It was lost while it was connected to.
        lost.set()
    to_node, to_client = asyncio.create_task(_to_node(client, node)), asyncio.create_task(_to_client(client, node))
    gone = asyncio.create_task(lost.wait())
    try:
        await asyncio.wait((to_node, to_client, gone), return_when=asyncio.FIRST_COMPLETED)
        if (_ended(to_node) and node.close_code is not None) or (gone.done() and _may_have_unread(node)):
            # What was received of the node before it has closed is passed on.
            await gateway.clock.wait((to_client,), LAST_FRAMES_TIMEOUT)
    finally:
        gateway.on_node_lost.remove(node_lost)
        for task in (to_node, to_client, gone):
            task.cancel()
        for result in await asyncio.gather(to_node, to_client, gone, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("an ACP connection that the node %s had has failed", node_id, exc_info=result)
    await client.close(*_close_of(node_id, node))


def _ended(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _may_have_unread(node: ClientConnection) -> bool:
    """Whether the node has closed the connection, or its close frame may be behind frames that a slow client has not read yet."""
    return node.state is not State.OPEN or not node.transport.is_reading()


def _close_of(node_id: str, node: ClientConnection) -> tuple[int, str]:
    """The code and the reason with which the client is disconnected."""
    code, reason = node.close_code, node.close_reason or ""
    if code is not None and code not in (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY):
        log.warning("the node %s has closed an ACP connection: code %d %s", node_id, code, reason)
    if code is not None and (code in ABOUT_FRAMES or 3000 <= code < 5000):
        return code, reason
    return GOING_AWAY, "the node of this connection has ended; connect again"


async def _to_node(client: Frames, node: ClientConnection) -> None:
    try:
        while True:
            frame = await client.receive()
            text = frame.get("text")
            await node.send(frame.get("bytes") or b"" if text is None else text)
    except (WebSocketDisconnect, Unauthorized, WebSocketException):
        pass


async def _to_client(client: Frames, node: ClientConnection) -> None:
    try:
        async for frame in node:
            await client.send_frame(frame)
    except (WebSocketDisconnect, Unauthorized, WebSocketException, RuntimeError):
        pass
