"""A WebSocket whose client wants an agent that only another node of the cluster has: all its frames are passed on, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from gateway.errors import NoNode, Unauthorized
from gateway.gateway import Gateway
from gateway.protocols.acp.node_socket import NodeUnreachable, open_node_socket
from gateway.protocols.acp.rpc import RpcError
from gateway.protocols.acp.transport.websocket_frames import GOING_AWAY, Frames
from gateway.protocols.forwarding.wire import WHOLE_CONNECTION
from gateway.security.authentication import Caller

MAX_ATTEMPTS = 3
"""Nodes that are tried one after the other."""


async def connect(gateway: Gateway, agent: str, caller: Caller, parameters: Mapping[str, str]) -> tuple[str, ClientConnection]:
    """Connect to a node that offers the agent, and return its id too. `parameters` are those of the client's URL.

    Raises NoNode.
    """
    passed_on = {name: parameters[name] for name in ("slash_commands",) if name in parameters}
    for _ in range(MAX_ATTEMPTS):
        node = gateway.agent_elsewhere(agent)
        if node is None:
            break
        try:
            return node.node_id, await open_node_socket(gateway, node, agent, caller, {**passed_on, WHOLE_CONNECTION: "on"})
        except NodeUnreachable:
            continue
        except RpcError:
            # The log has the reason.
            break
    raise NoNode(agent)


async def pass_on(gateway: Gateway, client: Frames, node_id: str, node: ClientConnection) -> None:
    """Pass all frames on until one side closes or the node is lost; then the client is disconnected, and its sessions stay."""
    lost = asyncio.Event()

    def node_lost(lost_id: str) -> None:
        if lost_id == node_id:
            lost.set()

    gateway.on_node_lost.append(node_lost)
    ends: list[Coroutine[Any, Any, object]] = [_to_node(client, node), _to_client(client, node), lost.wait()]
    tasks = [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gateway.on_node_lost.remove(node_lost)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await client.close(GOING_AWAY, "the node of this connection has ended; connect again")


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
