"""How an ACP connection that is forwarded to another node ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.cluster.forwarding import node_socket
from gateway.cluster.forwarding.node_socket import close_node_socket
from gateway.protocols.acp import forwarding
from gateway.protocols.acp.forwarding import NodeConnection
from gateway.protocols.acp.rpc import ELSEWHERE, RpcError
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

MESSAGES = [{"jsonrpc": "2.0", "method": f"message {n}"} for n in range(10)]
NEW = {"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": {}}


class SlowClient:
    """A client that reads a message whenever `reads` is released."""

    def __init__(self, *, fails: bool = False) -> None:
        self.reads = asyncio.Semaphore(0)
        self.got = list[dict[str, Any]]()
        self.disconnected = asyncio.Event()
        self._fails = fails

    async def forward(self, message: dict[str, Any]) -> None:
        if self._fails:
            raise ValueError("a fault of this program")
        await self.reads.acquire()
        self.got.append(message)


async def forwarded(
    client: SlowClient,
    handle: Callable[[ServerConnection], Awaitable[None]],
    meanwhile: Callable[[NodeConnection, ClientConnection, Any], Awaitable[None]] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Forward the connection of a client to a node until the client is disconnected."""
    gateway: Any = SimpleNamespace(clock=clock, on_node_lost=[])
    async with serve(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        socket = await connect(f"ws://127.0.0.1:{port}", proxy=None)
        node = NodeConnection(gateway, "node", socket, client, client.disconnected.set)  # type: ignore[arg-type]
        if meanwhile is not None:
            await meanwhile(node, socket, gateway)
        await asyncio.wait_for(client.disconnected.wait(), 60)
        assert gateway.on_node_lost == []
        client.disconnected.clear()
        await node.close()
        assert not client.disconnected.is_set()


async def send(node: ServerConnection, *messages: dict[str, Any]) -> None:
    for message in messages:
        await node.send(json.dumps(message))


async def test_a_client_gets_what_a_node_has_sent_before_its_end() -> None:
    """Also if the client sends something to the node that has ended, before it has read all of it."""
    client = SlowClient()

    async def handle(node: ServerConnection) -> None:
        await send(node, *MESSAGES)

    async def meanwhile(node: NodeConnection, socket: ClientConnection, gateway: Any) -> None:
        client.reads.release()
        await socket.wait_closed()
        await node.send({"jsonrpc": "2.0", "method": "late"})
        for _ in MESSAGES:
            client.reads.release()

    await forwarded(client, handle, meanwhile)
    assert client.got == MESSAGES


@pytest.mark.parametrize("count", [10, 100])
async def test_a_client_gets_what_a_node_has_sent_before_it_stopped(count: int) -> None:
    """Also if the close frame of the node is behind more messages than are received before the client reads them."""
    client = SlowClient()
    sent = [{"jsonrpc": "2.0", "method": f"message {n}"} for n in range(count)]

    async def handle(node: ServerConnection) -> None:
        await send(node, *sent)

    async def meanwhile(node: NodeConnection, socket: ClientConnection, gateway: Any) -> None:
        await wait_until(lambda: not socket.transport.is_reading())
        assert (socket.close_code is not None) is (count < 16)
        gateway.on_node_lost[0]("node")
        for _ in range(3):
            # The tasks of the connection notice it.
            await asyncio.sleep(0)
        for _ in sent:
            client.reads.release()

    await forwarded(client, handle, meanwhile)
    assert client.got == sent


async def test_a_client_that_does_not_read_is_waited_for_only_so_long(clock: ManualClock) -> None:
    client = SlowClient()

    async def handle(node: ServerConnection) -> None:
        await send(node, *MESSAGES)

    async def meanwhile(node: NodeConnection, socket: ClientConnection, gateway: Any) -> None:
        await socket.wait_closed()
        gateway.on_node_lost[0]("another")
        gateway.on_node_lost[0]("node")
        await clock.expire(forwarding.LAST_MESSAGES_TIMEOUT)

    await forwarded(client, handle, meanwhile, clock)
    assert client.got == []


async def test_a_node_that_is_lost_without_having_closed_is_not_waited_for(clock: ManualClock) -> None:
    async def handle(node: ServerConnection) -> None:
        await node.wait_closed()

    async def meanwhile(node: NodeConnection, socket: ClientConnection, gateway: Any) -> None:
        gateway.on_node_lost[0]("node")

    await forwarded(SlowClient(), handle, meanwhile, clock)


async def test_a_request_without_an_answer_fails_when_the_node_ends() -> None:
    async def handle(node: ServerConnection) -> None:
        await node.recv()

    async def meanwhile(node: NodeConnection, socket: ClientConnection, gateway: Any) -> None:
        for _ in range(2):
            with pytest.raises(RpcError, match="has ended; send it again"):
                await node.place(NEW)

    await forwarded(SlowClient(), handle, meanwhile)


async def test_a_refusal_is_sent_to_the_client_once_it_has_a_session_there() -> None:
    client = SlowClient()
    refusal = {"jsonrpc": "2.0", "id": 7, "error": {"code": ELSEWHERE, "message": "elsewhere"}}
    answer = {"jsonrpc": "2.0", "id": 7, "result": {}}

    async def handle(node: ServerConnection) -> None:
        for message in (refusal, answer, refusal):
            await node.recv()
            await send(node, message)

    async def meanwhile(node: NodeConnection, socket: ClientConnection, gateway: Any) -> None:
        assert not await node.place(NEW) and not node.has_session
        assert await node.place(NEW) and node.has_session
        assert await node.place(NEW)
        client.reads.release()
        client.reads.release()

    await forwarded(client, handle, meanwhile)
    assert client.got == [answer, refusal]


async def test_a_session_that_is_deleted_does_not_bind_the_connection_to_its_node() -> None:
    client = SlowClient()
    client.reads.release()

    async def handle(node: ServerConnection) -> None:
        await node.recv()
        await send(node, {"jsonrpc": "2.0", "id": 7, "result": {}})

    async def meanwhile(node: NodeConnection, socket: ClientConnection, gateway: Any) -> None:
        assert await node.place({**NEW, "method": "session/delete"}) and not node.has_session

    await forwarded(client, handle, meanwhile)


async def test_a_failure_is_logged_and_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(node: ServerConnection) -> None:
        await send(node, *MESSAGES)
        await node.wait_closed()

    with caplog.at_level(logging.ERROR):
        await forwarded(SlowClient(fails=True), handle)
    assert "an ACP connection that the node node serves has failed" in caplog.text and "a fault of this program" in caplog.text


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
