"""`GET /updates` at a node has the changes of all nodes, and ends where some may be missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.cluster.forwarding.followed_updates import READY_TIMEOUT, RETRY
from gateway.protocols.aap.session_updates import INTERVAL
from gateway.store.nodes import NodeReport
from tests.gateway.nodes.cluster import ELSEWHERE
from tests.gateway.nodes.test_shared_credentials import client_of
from tests.gateway.nodes.two_nodes import run_node, two_nodes
from tests.support.daemon import RunningGateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import create_session, user_message
from tests.support.sse import arriving
from tests.support.waiting import wait_until

UPDATES = "/aap/v3/updates"
SILENT = 10.0


class Updates:
    """The frames of an open stream, without comments."""

    def __init__(self, response: httpx.Response) -> None:
        self._events = arriving(response)

    async def event(self) -> tuple[str, str] | None:
        """The event and the session of the next frame; None at the end."""
        event = await anext(self._events, None)
        return None if event is None else (event.event, event.json().get("sessionId", ""))

    async def until(self, *wanted: tuple[str, str]) -> list[tuple[str, str]]:
        """The events up to those that are wanted."""
        found: list[tuple[str, str]] = []
        while not set(wanted) <= set(found):
            event = await self.event()
            assert event is not None, found
            found.append(event)
        return found

    async def end(self) -> None:
        while await self.event() is not None:
            pass


@asynccontextmanager
async def updates(client: httpx.AsyncClient) -> AsyncIterator[Updates]:
    async with asyncio.timeout(60), client.stream("GET", UPDATES) as response:
        assert response.status_code == 200, await response.aread()
        yield Updates(response)


@asynccontextmanager
async def ready(client: httpx.AsyncClient) -> AsyncIterator[Updates]:
    async with updates(client) as stream:
        assert await stream.event() == ("ready", "")
        yield stream


async def create(node: RunningGateway, client: httpx.AsyncClient | None = None) -> str:
    """Create a session at this node."""
    while True:
        session = str((await create_session(client or node.client, "echo"))["sessionId"])
        if session in node.gateway.sessions._known:
            return session


def listeners(node: RunningGateway) -> int:
    return len(node.gateway.sessions.changes._listeners)


async def test_the_changes_of_all_nodes_are_in_one_stream_once(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two), ready(one.client) as stream:
        sessions = [await create(node) for node in (one, two)]
        created = await stream.until(*(("session", session) for session in sessions))
        assert sum(event == "ready" for event, _ in created) == 0
        # Without its client's next request each session is at rest. A change is in one frame.
        await asyncio.sleep(3 * INTERVAL)
        for session in sessions:
            assert (await one.client.delete(f"/aap/v3/sessions/{session}")).status_code == 204
        last = await create(one)
        frames = await stream.until(*(("session_deleted", session) for session in sessions), ("session", last))
        for session in sessions:
            assert frames.count(("session_deleted", session)) == 1


async def test_a_caller_gets_the_changes_of_its_own_sessions_at_other_nodes(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two):
        keys = [(await one.client.post("/v1/keys", json={"name": name})).json()["key"] for name in ("phone", "laptop")]
        async with client_of(one, keys[0]) as phone, client_of(two, keys[1]) as laptop, ready(phone) as stream:
            other = await create(two, laptop)
            async with client_of(two, keys[0]) as same:
                own = await create(two, same)
            assert ("session", other) not in await stream.until(("session", own))


async def test_the_node_of_the_client_counts_the_stream(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, limits={"streams_per_key": 1}) as (one, two):
        async with ready(one.client), ready(two.client):
            assert [listeners(node) for node in (one, two)] == [2, 2]
            assert [(await node.client.get(UPDATES)).status_code for node in (one, two)] == [429, 429]
        await wait_until(lambda: [listeners(node) for node in (one, two)] == [0, 0])


async def test_a_stream_ends_when_a_node_is_started_and_when_it_is_stopped(tmp_path: Path) -> None:
    async with run_node(tmp_path, "one") as one, AsyncExitStack() as stack:
        assert one.gateway.node is not None
        async with ready(one.client) as stream:
            two = await stack.enter_async_context(run_node(tmp_path, "two"))
            await one.gateway.node.beat()
            await stream.end()
        async with ready(one.client) as stream:
            # The same nodes run.
            await one.gateway.node.beat()
            session = await create(two)
            await stream.until(("session", session))
            await stack.aclose()
            await stream.end()


async def test_a_node_that_cannot_be_reached_ends_a_stream_as_late_as_a_silent_one(tmp_path: Path) -> None:
    clock = ManualClock()
    async with run_node(tmp_path, "one", clock) as one:
        assert one.gateway.node is not None
        await one.gateway.store.nodes.start(NodeReport(id="two", address=ELSEWHERE), 3600.0)
        await one.gateway.node.beat()
        async with updates(one.client) as stream:
            first = asyncio.create_task(stream.event())
            await clock.waited_for(READY_TIMEOUT)
            assert not first.done()
            await clock.advance(READY_TIMEOUT)
            assert await first == ("ready", "")
            await clock.advance(SILENT - READY_TIMEOUT - RETRY)
            session = await create(one)
            assert await stream.event() == ("session", session)
            await clock.outlast(stream.end())


async def test_a_stream_ends_when_a_node_that_it_did_not_wait_for_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with run_node(tmp_path, "one", clock) as one, run_node(tmp_path, "two") as two:
        assert one.gateway.node is not None
        await one.gateway.node.beat()
        stored = two.gateway.sessions.stored

        async def not_stored() -> bool:
            return False

        monkeypatch.setattr(two.gateway.sessions, "stored", not_stored)
        async with updates(one.client) as stream:
            first = asyncio.create_task(stream.event())
            await clock.expire(READY_TIMEOUT)
            assert await first == ("ready", "")
            monkeypatch.setattr(two.gateway.sessions, "stored", stored)
            await clock.expire_until(stream.end(), RETRY)


async def test_ready_comes_when_the_store_has_what_was_reported_before(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two):
        session = (await create_session(two.client, "echo"))["sessionId"]
        [owner] = [node for node in (one, two) if session in node.gateway.sessions._known]
        held = owner.gateway.sessions._known[session]
        answer = await owner.client.post(f"/aap/v3/sessions/{session}/turns", json={"messages": [user_message("x")]})
        assert answer.status_code == 200
        stored, written = asyncio.Event(), held.log.written

        async def late(timeout: float | None = None, stop: asyncio.Event | None = None) -> bool:
            await stored.wait()
            return await written(timeout, stop)

        held.log.written = late  # type: ignore[method-assign]
        for node in (one, two):
            stored.clear()
            async with updates(node.client) as stream:
                first = asyncio.create_task(stream.event())
                await wait_until(lambda: [listeners(each) for each in (one, two)] == [1, 1])
                await asyncio.sleep(INTERVAL)
                assert not first.done()
                stored.set()
                assert await first == ("ready", "")
