"""The id of a node is that of one daemon: the lock of the id, who gets it, and what the one writes that has lost it."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from gateway.store import Store, node_ids
from gateway.store.backend import NodeIdTaken
from gateway.store.node_ids import NodeRuns
from gateway.store.nodes import NodeReport
from tests.support.postgresql import server

pytestmark = pytest.mark.one_store

NODE = NodeReport(id="node", address="http://node:7700")
LONG = 60.0


@pytest.fixture
def url() -> str:
    return server().url(server().create_database())


async def start(url: str, silent: float = LONG) -> Store:
    """The store of a node that has started."""
    store = await Store.open_as_node(url, NODE.id, silent)
    await store.nodes.start(NODE, LONG)
    return store


async def beat(store: Store) -> None:
    await store.nodes.beat(NODE, LONG)


async def refused(url: str, first: Store) -> None:
    """A second daemon with the id of the first one, which sends heartbeats, is refused."""
    second = asyncio.create_task(Store.open_as_node(url, NODE.id, LONG))
    async with asyncio.timeout(LONG):
        while not second.done():
            await beat(first)
    with pytest.raises(NodeRuns, match=r"runs already: node, at http://node:7700"):
        await second


async def server_process(store: Store) -> int:
    """The process of the server that executes what a store writes."""
    return await store._database.write(lambda connection: int(connection.value("SELECT pg_backend_pid()")))


async def end_server_process(store: Store) -> None:
    """End the connection by which a store writes, and wait until it has ended."""
    process = await server_process(store)
    server().execute(f"SELECT pg_terminate_backend({process}, 60000)")


async def waiting(url: str, silent: float, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[Store]:
    """The start of a daemon that waits for the id of another one."""
    looked, look = asyncio.Event(), node_ids._node
    loop = asyncio.get_running_loop()

    def noted(*args: object) -> tuple[str, float]:
        loop.call_soon_threadsafe(looked.set)
        return look(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(node_ids, "_node", noted)
    opening = asyncio.create_task(Store.open_as_node(url, NODE.id, silent))
    await asyncio.wait_for(looked.wait(), LONG)
    return opening


async def test_a_daemon_is_refused_while_one_with_its_id_sends_heartbeats(url: str) -> None:
    first = await start(url)
    process = await server_process(first)
    await refused(url, first)
    assert await server_process(first) == process
    assert [record.report.address for record in await first.nodes.all()] == [NODE.address]
    # Nodes with other ids are not affected.
    await (await Store.open_as_node(url, "other", LONG)).close()
    await first.close()


async def test_a_daemon_starts_at_once_when_the_connection_of_its_earlier_process_ends(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start(url)
    await beat(first)
    opening = await waiting(url, LONG, monkeypatch)
    assert not opening.done()
    # The last heartbeat is young.
    await first.close()
    second = await asyncio.wait_for(opening, LONG / 2)
    await second.close()


async def test_a_heartbeat_that_is_stored_while_its_process_is_killed_refuses_nobody(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start(url)
    monkeypatch.setattr(node_ids, "PAUSE", LONG)
    pauses, asleep = asyncio.Queue[asyncio.Event](), asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds != LONG:
            return await asleep(seconds)
        ended = asyncio.Event()
        pauses.put_nowait(ended)
        await ended.wait()

    monkeypatch.setattr(asyncio, "sleep", pause)
    opening = asyncio.create_task(Store.open_as_node(url, NODE.id, LONG))
    async with asyncio.timeout(LONG):
        ended = await pauses.get()
        await beat(first)
        ended.set()
        # It has seen the heartbeat by then.
        ended = await pauses.get()
        await first.close()
        # The server may keep the lock of a connection for a moment after its end.
        monkeypatch.setattr(node_ids, "PAUSE", 0.01)
        ended.set()
        await (await opening).close()


async def test_the_id_of_a_silent_process_is_taken_and_that_process_writes_nothing_more(url: str) -> None:
    first = await start(url)
    second = await start(url, silent=0.2)
    for _ in "12":
        with pytest.raises(NodeIdTaken, match="another daemon has the id of this node, node"):
            await first.nodes.drain(NODE.id)
    assert [record.state for record in await second.nodes.all()] == ["ready"]
    await first.close()
    await beat(second)
    await second.close()


async def test_a_daemon_that_starts_itself_is_not_silent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes wait for the id of a silent one: the second does not end the connection of the first."""
    silent = await start(url)
    opening = await waiting(url, 2.0, monkeypatch)
    # Another one has ended the silent one just now.
    await end_server_process(silent)
    first = await asyncio.wait_for(opening, LONG)
    await first.nodes.start(NODE, LONG)
    await refused(url, first)
    for store in (silent, first):
        await store.close()


async def test_a_node_takes_its_lock_with_its_next_connection(url: str) -> None:
    first = await start(url)
    await end_server_process(first)
    await beat(first)
    await refused(url, first)
    await first.close()


async def test_a_node_has_its_lock_also_where_the_server_has_not_noticed_the_loss_of_its_connection(url: str) -> None:
    first = await start(url)
    process = await server_process(first)
    descriptor = await first._database.write(lambda connection: int(connection.driver.fileno()))
    kept = os.dup(descriptor)
    lost, other = socket.socketpair()
    other.close()
    os.dup2(lost.fileno(), descriptor)
    lost.close()
    await beat(first)
    assert await server_process(first) != process
    await refused(url, first)
    os.close(kept)
    await first.close()


async def test_a_node_without_a_connection_whose_id_another_one_has_got_writes_nothing_more(url: str) -> None:
    first = await start(url)
    await end_server_process(first)
    second = await start(url)
    with pytest.raises(NodeIdTaken):
        await beat(first)
    await refused(url, second)
    await first.close()
    await second.close()
