"""How a WebSocket that is passed on to another node ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.protocols.acp import node_socket
from gateway.protocols.acp.node_socket import close_node_socket
from gateway.protocols.acp.transport import passed_on_websocket
from gateway.protocols.acp.transport.passed_on_websocket import pass_on
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

ENDED = (1001, "the node of this connection has ended; connect again")
FRAMES = [f"frame {n}" for n in range(10)]


class SlowClient:
    """A client that reads a frame whenever `reads` is released, and sends what is put into `sent`; None is its end."""

    def __init__(self, *, fails: bool = False) -> None:
        self.sent = asyncio.Queue[str | None]()
        self.reads = asyncio.Semaphore(0)
        self.got = list[str | bytes]()
        self.closed: tuple[int, str] | None = None
        self._fails = fails

    async def receive(self) -> dict[str, Any]:
        text = await self.sent.get()
        if text is None:
            raise WebSocketDisconnect(1000)
        return {"type": "websocket.receive", "text": text}

    async def send_frame(self, frame: str | bytes) -> None:
        if self._fails:
            raise ValueError("a fault of this program")
        await self.reads.acquire()
        self.got.append(frame)

    async def close(self, code: int, reason: str) -> None:
        self.closed = self.closed or (code, reason)


class Lives:
    """The only node that lives."""

    def __init__(self, node: str) -> None:
        self._node = node

    def lives(self, node: str) -> bool:
        return node == self._node


def cluster_of_one(node: str = "node", clock: Clock = SYSTEM_CLOCK) -> Any:
    """A gateway that knows one other node."""
    return SimpleNamespace(clock=clock, on_node_lost=[], node=SimpleNamespace(directory=Lives(node)))


async def passed_on(
    client: SlowClient,
    handle: Callable[[ServerConnection], Awaitable[None]],
    meanwhile: Callable[[Any], Awaitable[None]] | None = None,
    gateway: Any = None,
) -> None:
    """Pass the frames of a client on to a node."""
    gateway = gateway or cluster_of_one()
    async with serve(handle, "127.0.0.1", 0, max_size=100) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}", proxy=None) as node:
            passing = asyncio.create_task(pass_on(gateway, client, "node", node))  # type: ignore[arg-type]
            if meanwhile is not None:
                await meanwhile(node)
            await asyncio.wait_for(passing, 60)
    assert gateway.on_node_lost == []


@pytest.mark.parametrize("sends", [True, False])
async def test_what_a_node_has_sent_before_its_end_is_passed_on(sends: bool) -> None:
    """Also where the client sends something to the node that has ended, before it has read all of it."""
    client = SlowClient()

    async def handle(node: ServerConnection) -> None:
        for frame in FRAMES:
            await node.send(frame)

    async def meanwhile(node: Any) -> None:
        client.reads.release()
        await node.wait_closed()
        if sends:
            client.sent.put_nowait("late")
            await wait_until(client.sent.empty)
        for _ in FRAMES:
            client.reads.release()

    await passed_on(client, handle, meanwhile)
    assert client.got == FRAMES
    assert client.closed == ENDED


async def test_a_client_that_does_not_read_is_waited_for_only_so_long(clock: ManualClock) -> None:
    client = SlowClient()

    async def handle(node: ServerConnection) -> None:
        await node.send("unread")

    async def meanwhile(node: Any) -> None:
        await node.wait_closed()
        client.sent.put_nowait("late")
        await clock.expire(passed_on_websocket.LAST_FRAMES_TIMEOUT)

    await passed_on(client, handle, meanwhile, cluster_of_one(clock=clock))
    assert client.got == [] and client.closed == ENDED


@pytest.mark.parametrize("frames", [10, 100])
async def test_a_client_gets_what_a_node_has_sent_before_it_stopped(frames: int) -> None:
    """Also where the close frame of the node is behind more frames than are received before the client reads them."""
    client = SlowClient()
    sent = [f"frame {n}" for n in range(frames)]

    async def handle(node: ServerConnection) -> None:
        for frame in sent:
            await node.send(frame)

    async def meanwhile(node: Any) -> None:
        await wait_until(lambda: gateway.on_node_lost and not node.transport.is_reading())
        assert (node.close_code is not None) is (frames < 16)
        gateway.on_node_lost[0]("node")
        for _ in range(3):
            # The tasks of the connection notice it.
            await asyncio.sleep(0)
        for _ in sent:
            client.reads.release()

    gateway: Any = cluster_of_one()
    await passed_on(client, handle, meanwhile, gateway)
    assert client.got == sent
    assert client.closed == ENDED


async def test_a_node_that_is_lost_without_having_closed_is_not_waited_for(clock: ManualClock) -> None:
    client = SlowClient()

    async def handle(node: ServerConnection) -> None:
        await node.wait_closed()

    async def meanwhile(node: Any) -> None:
        await wait_until(lambda: gateway.on_node_lost)
        gateway.on_node_lost[0]("node")

    gateway: Any = cluster_of_one(clock=clock)
    await passed_on(client, handle, meanwhile, gateway)
    assert client.closed == ENDED


@pytest.mark.parametrize(
    ("code", "client_gets", "logged"),
    [
        (1000, ENDED, False),
        (1001, ENDED, False),
        (1008, (1008, "why"), True),
        (1011, ENDED, True),
        (4001, (4001, "why"), True),
    ],
)
async def test_the_close_code_of_the_node(
    code: int, client_gets: tuple[int, str], logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    client = SlowClient()

    async def handle(node: ServerConnection) -> None:
        await node.close(code, "why")

    with caplog.at_level(logging.WARNING, passed_on_websocket.__name__):
        await passed_on(client, handle)
    assert client.closed == client_gets
    assert (f"the node node has closed an ACP connection: code {code} why" in caplog.text) is logged


async def test_a_client_whose_message_is_too_large_for_the_node_is_told_so() -> None:
    client = SlowClient()
    client.sent.put_nowait("x" * 101)

    async def handle(node: ServerConnection) -> None:
        await node.wait_closed()

    await passed_on(client, handle)
    assert client.closed is not None and client.closed[0] == 1009


async def test_a_client_that_leaves_ends_the_connection_at_once() -> None:
    client = SlowClient()
    client.sent.put_nowait(None)

    async def handle(node: ServerConnection) -> None:
        await node.send("unread")
        await node.wait_closed()

    await passed_on(client, handle)
    assert client.got == []


async def test_a_node_that_was_lost_while_it_was_connected_to() -> None:
    client = SlowClient()

    async def handle(node: ServerConnection) -> None:
        await node.wait_closed()

    gateway = cluster_of_one("another")
    async with serve(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}", proxy=None) as node:
            await asyncio.wait_for(pass_on(gateway, client, "node", node), 60)  # type: ignore[arg-type]
    assert client.closed == ENDED


async def test_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    client = SlowClient(fails=True)

    async def handle(node: ServerConnection) -> None:
        await node.send("frame")
        await node.wait_closed()

    await passed_on(client, handle)
    assert client.closed == ENDED
    assert "an ACP connection that the node node had has failed" in caplog.text and "a fault of this program" in caplog.text


async def test_the_end_of_a_connection_does_not_wait_for_a_node_that_reads_nothing(clock: ManualClock) -> None:
    ended = asyncio.Event()

    async def handle(node: ServerConnection) -> None:
        node.transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()
        node.transport.abort()

    async with serve(handle, "127.0.0.1", 0, max_size=None) as server:
        port = server.sockets[0].getsockname()[1]
        node = await connect(f"ws://127.0.0.1:{port}", proxy=None, compression=None, close_timeout=1, ping_interval=None)
        sending = asyncio.create_task(node.send("x" * 50_000_000))
        await wait_until(lambda: node.transport.get_write_buffer_size() > 0)
        closing = asyncio.create_task(close_node_socket(node, clock))
        await clock.expire(node_socket.CLOSE_TIMEOUT)
        await asyncio.wait_for(closing, 20)
        await asyncio.wait_for(node.wait_closed(), 20)
        await asyncio.gather(sending, return_exceptions=True)
        ended.set()
