"""WebSockets to the ACP endpoint of another node. Both nodes prove that they have the node key."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from drivers.runtime.clock import Clock
from gateway.app import Gateway
from gateway.cluster.forwarding.silent_peers import notice_silence
from gateway.cluster.forwarding.wire import CALLER, PROOF, SIGNATURE
from gateway.errors import GatewayError, SessionElsewhere
from gateway.security.authentication import Caller

log = logging.getLogger(__name__)

OPEN_TIMEOUT = 5.0
"""Seconds for a connection to another node."""
CLOSE_TIMEOUT = 2.0
"""Seconds for the end of such a connection."""
GONE = "the node of this session has ended; send it again, in some seconds another node has the session"


class SocketUnreachable(GatewayError):
    """There is no connection to the other node. Nothing of the request was sent."""

    status = 503

    def __init__(self) -> None:
        super().__init__(GONE)


class SocketRefused(GatewayError):
    """The other node does not accept the connection, or has not proven the node key."""

    status = 502


async def open_node_socket(
    gateway: Gateway, node: SessionElsewhere, agent: str, caller: Caller, parameters: Mapping[str, str]
) -> ClientConnection:
    """Connect to a node for a caller that this one has authenticated. `parameters` are those of the URL.

    Raises SocketRefused, and SocketUnreachable where another node may be tried.
    """
    keys = gateway.node_keys
    assert keys is not None
    target = f"/acp/{quote(agent)}{'?' if parameters else ''}{urlencode(parameters)}"
    signed = keys.sign(node.node_id, "GET", target.encode(), b"", caller)
    try:
        socket = await connect(
            "ws" + node.address.rstrip("/").removeprefix("http") + target,
            additional_headers={SIGNATURE.decode(): signed.signature, CALLER.decode(): signed.caller},
            max_size=None,
            proxy=None,
            compression=None,
            user_agent_header=None,
            open_timeout=OPEN_TIMEOUT,
            close_timeout=1,
            # Pongs are behind the messages that a slow client has not read yet.
            ping_interval=None,
        )
    except InvalidStatus as error:
        log.error("the node %s refuses the connection for ACP: status %s", node.node_id, error.response.status_code)
        raise SocketRefused("the node of this session refuses this node; its log has the reason") from None
    except (OSError, WebSocketException, TimeoutError) as error:
        log.warning("the node %s cannot be reached: %s", node.node_id, error)
        if gateway.node is not None:
            gateway.node.directory.unreachable(node.node_id)
        raise SocketUnreachable from None
    notice_silence(socket.transport.get_extra_info("socket"))
    proof = "" if socket.response is None else socket.response.headers.get(PROOF.decode(), "")
    if not keys.is_proof(signed, 101, proof):
        await close_node_socket(socket, gateway.clock)
        log.error("the connection for ACP to the node %s is closed: it has not proven the node key", node.node_id)
        raise SocketRefused("the node of this session could not be verified; the log of this node has the reason")
    return socket


async def close_node_socket(socket: ClientConnection, clock: Clock) -> None:
    """Close a WebSocket to another node. One that reads nothing is not waited for.

    websockets 17.4 waits for space in the buffer of the connection outside of its `close_timeout`.
    """
    try:
        async with clock.timeout(CLOSE_TIMEOUT):
            await socket.close()
    except TimeoutError:
        socket.transport.abort()
