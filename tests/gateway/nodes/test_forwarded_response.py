"""One forwarded request: how it ends if its client disconnects, its node is lost, or its task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from gateway.cluster.forwarding.forwarded_response import ForwardedResponse, Outcome
from gateway.cluster.forwarding.kept_body import KeptBody
from gateway.cluster.forwarding.node_client import NodeClient
from gateway.cluster.forwarding.node_request import ForwardedRequest
from gateway.cluster.node_keys import NodeKeys
from gateway.config import LimitSettings
from gateway.security.authentication import ADMINISTRATOR
from gateway.security.quotas import KeyQuotas, RequestQuotas
from tests.gateway.nodes.cluster import NODE_KEY
from tests.gateway.nodes.fake_node import FakeRequest, fake_node
from tests.support.waiting import wait_until

STREAM = ("content-type: text/event-stream", "transfer-encoding: chunked")


@dataclass
class Client:
    """The client of a forwarded request: the messages that it sends, and those that it got."""

    messages: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    received: list[Message] = field(default_factory=list)
    got: asyncio.Event = field(default_factory=asyncio.Event)
    before_send: Callable[[], Awaitable[None]] | None = None

    def post(self, body: bytes = b"{}", *, more: bool = False) -> None:
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def disconnect(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})

    async def send(self, message: Message) -> None:
        if self.before_send is not None:
            await self.before_send()
        self.received.append(message)
        if message["type"] == "http.response.body":
            self.got.set()

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.received if m["type"] == "http.response.start"), None)

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.received if m["type"] == "http.response.body")

    @property
    def complete(self) -> bool:
        return any(m["type"] == "http.response.body" and not m.get("more_body") for m in self.received)


@dataclass
class Node:
    """The other node, which sends the first part of a stream and waits until its connection is closed."""

    begins: bool = True
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    requests: int = 0

    async def respond(self, request: FakeRequest) -> None:
        self.requests += 1
        try:
            if self.begins:
                await request.begin(200, *STREAM)
                await request.send(b"4\r\npart\r\n")
            self.asked.set()
            with suppress(ConnectionError):
                await request.reader.read()
        finally:
            self.closed.set()


@dataclass
class Forwarding:
    client: Client
    node: Node
    response: ForwardedResponse
    scope: Scope

    def start(self) -> asyncio.Task[Outcome]:
        return asyncio.create_task(self.response.relay())

    async def started(self) -> asyncio.Task[Outcome]:
        """Start it, and wait until the node has the request, and the client what it sends at once."""
        self.client.post()
        task = self.start()
        await soon(self.node.asked.wait())
        if self.node.begins:
            await soon(self.client.got.wait())
        return task


async def soon(work: Awaitable[Any]) -> Any:
    """What hangs fails within a minute."""
    return await asyncio.wait_for(work, 60)


@asynccontextmanager
async def forwarding(respond: Callable[[FakeRequest], Awaitable[None]] | None = None) -> AsyncIterator[Forwarding]:
    """A request that can be forwarded; afterwards no task of it is left."""
    before = asyncio.all_tasks()
    client, node, http = Client(), Node(), NodeClient()
    quotas = RequestQuotas(KeyQuotas(LimitSettings()), None)
    async with fake_node(respond or node.respond) as url:
        forwarded = ForwardedRequest("b", url, ADMINISTRATOR, quotas, None)
        scope: Scope = {"type": "http", "method": "POST", "raw_path": b"/x", "query_string": b"", "headers": [], "extensions": {}}
        body = KeptBody(client.messages.get)
        response = ForwardedResponse(http, NodeKeys("a", [NODE_KEY]), forwarded, body, scope, client.messages.get, client.send)
        yield Forwarding(client, node, response, scope)
        await http.close()
        left = asyncio.all_tasks() - before
        await soon(asyncio.gather(*left, return_exceptions=True))


async def cancelled(task: asyncio.Task[Outcome]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await soon(asyncio.shield(task))
    assert task.cancelled()


async def test_a_client_that_disconnects_ends_the_request_at_the_node() -> None:
    async with forwarding() as f:
        task = await f.started()
        f.client.disconnect()
        assert await soon(task) == "disconnected"
        await soon(f.node.closed.wait())
        assert f.client.body == b"part" and not f.client.complete


async def test_a_client_that_disconnects_before_the_response_begins_ends_the_request_at_the_node() -> None:
    async with forwarding() as f:
        f.node.begins = False
        task = await f.started()
        f.client.disconnect()
        assert await soon(task) == "disconnected"
        await soon(f.node.closed.wait())
        assert not f.client.received


async def test_a_client_that_disconnects_while_it_sends_its_body_is_not_forwarded() -> None:
    async with forwarding() as f:
        f.client.post(more=True)
        f.client.disconnect()
        with pytest.raises(ClientDisconnect):
            await f.response.relay()
        assert not f.node.requests


async def test_the_end_of_a_node_before_its_response_is_a_502() -> None:
    async with forwarding() as f:
        f.node.begins = False
        task = await f.started()
        f.response.end()
        assert await soon(task) == "broken"
        await soon(f.node.closed.wait())
        assert f.client.status == 502 and b"has ended before its answer" in f.client.body and f.client.complete


async def test_the_end_of_a_node_within_its_response_cuts_it_off() -> None:
    """Also if the client disconnects at the same time."""
    async with forwarding() as f:
        task = await f.started()
        f.response.end()
        f.response.end()
        f.client.disconnect()
        assert await soon(task) == "broken"
        await soon(f.node.closed.wait())
        assert (f.client.status, f.client.body, f.client.complete) == (200, b"part", False)


async def test_a_node_that_is_lost_while_the_body_is_received_gets_no_request() -> None:
    """It is not notified a second time, and could be a node that accepts connections and does nothing."""
    async with forwarding() as f:
        f.client.post(more=True)
        task = f.start()
        await wait_until(f.client.messages.empty)
        f.response.end()
        f.client.post()
        assert await soon(task) == "unreachable"
        assert not f.node.requests and not f.client.received


@pytest.mark.parametrize("also", ["", "end before", "end after"])
async def test_a_task_that_is_cancelled_is_cancelled(also: str) -> None:
    """Also if its node ends at the same time."""
    async with forwarding() as f:
        task = await f.started()
        if also == "end before":
            f.response.end()
        task.cancel()
        if also == "end after":
            f.response.end()
        await cancelled(task)
        assert task.cancelling() == 1
        await soon(f.node.closed.wait())
        assert f.client.status in (None, 200) and not f.client.complete


@pytest.mark.parametrize("how", ["end", "disconnect"])
async def test_a_request_that_has_ended_does_not_leave_its_task_cancelled(how: str) -> None:
    """What the task awaits afterwards is not cancelled, and a timeout around it still works."""
    async with forwarding() as f:

        async def handle() -> int:
            task = asyncio.current_task()
            assert task is not None
            await f.response.relay()
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            return task.cancelling()

        f.client.post()
        task = asyncio.create_task(handle())
        await soon(f.client.got.wait())
        if how == "end":
            f.response.end()
        else:
            f.client.disconnect()
        assert await soon(task) == 0


async def test_a_timeout_around_a_request_is_a_timeout() -> None:
    async with forwarding() as f:
        f.client.post()

        async def handle() -> None:
            async with asyncio.timeout(None) as limit:
                f.client.before_send = expire(limit)
                await f.response.relay()

        with pytest.raises(TimeoutError):
            await soon(handle())
        await soon(f.node.closed.wait())


def expire(limit: asyncio.Timeout) -> Callable[[], Awaitable[None]]:
    async def before_send() -> None:
        limit.reschedule(0)
        await asyncio.Event().wait()

    return before_send


async def test_the_end_of_a_node_whose_response_is_complete_changes_nothing() -> None:
    """A response to a slow client is sent to its end."""

    async def respond(request: FakeRequest) -> None:
        await request.begin(200, "content-length: 5")
        await request.send(b"whole")

    async with forwarding(respond) as f:
        sending, go = asyncio.Event(), asyncio.Event()

        async def slowly() -> None:
            if f.client.status is not None:
                sending.set()
                await go.wait()

        f.client.before_send = slowly
        f.client.post()
        task = f.start()
        await soon(sending.wait())
        f.response.end()
        f.client.disconnect()
        await asyncio.sleep(0)
        go.set()
        assert await soon(task) == "answered"
        assert f.client.body == b"whole" and f.client.complete and task.cancelling() == 0
