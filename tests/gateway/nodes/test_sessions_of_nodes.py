"""Which node changes a session, and what the others see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.events import SessionEnd
from gateway.errors import LeaseLost, NotFound, SessionElsewhere
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.settings import SessionSettings
from gateway.store import Store
from gateway.store.messages import MessageRepository
from tests.gateway.nodes.three_nodes import ClusterNode, begin, create_waiting, permission, rest, run_nodes, say
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


async def session_is_served_by_the_node_that_has_its_lease_and_listed_by_all(
    a: ClusterNode, b: ClusterNode, write_scenario: WriteScenario
) -> None:
    session = await a.create()
    for reading in (False, True):
        with pytest.raises(SessionElsewhere) as raised:
            await b.get(session.id, reading=reading)
        assert (raised.value.node_id, raised.value.address, raised.value.log_id) == (a.id, "http://a:7700", session.id)
    assert await a.get(session.id) is session
    await say(session)
    assert session.id in [found.id for found in await b.gateway.sessions.page(ADMINISTRATOR, 10, None)]


async def test_a_session_that_is_followed_keeps_its_node_until_that_is_drained(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, _):
        session = await a.create()
        assert session.lease is not None
        following = asyncio.create_task(session.log.read(session.log.last))
        await wait_until(lambda: session.log.is_followed)
        await a.tidy(60.0)
        assert session.lease.held
        a.node.directory.draining = True
        await a.tidy()
        assert not session.lease.held
        with pytest.raises(LeaseLost):
            await following


async def unused_session_is_free_for_the_other_nodes_which_prefer_the_last_one(
    a: ClusterNode, b: ClusterNode, write_scenario: WriteScenario
) -> None:
    session = await a.create()
    await say(session)
    await a.tidy(60.0)
    assert session.lease is not None and session.lease.held, "it has an agent"
    async with session.lock:
        await session.sleep()
    await a.tidy()
    assert not session.lease.held
    with pytest.raises(SessionElsewhere) as raised:
        await b.get(session.id)
    assert raised.value.node_id == a.id, "it had the session last"
    assert await a.get(session.id) is session, "nobody had it meanwhile"
    assert session.lease.held and session.lease.token == 2
    await say(session, "again")


async def test_a_reader_gets_all_that_is_here_of_a_session_that_was_released(tmp_path: Path) -> None:
    """A client may read the last turn slowly, as when the node is drained right after its end."""
    async with run_nodes(tmp_path, "a", "b") as (a, _):
        session = await a.create()
        turn = await begin(session)
        await rest(turn)
        async with session.lock:
            await session.sleep()
        a.node.directory.draining = True
        await a.tidy()
        assert session.lease is not None and not session.lease.held
        assert isinstance((await rest(turn))[-1], SessionEnd)
        with pytest.raises(LeaseLost, match="look what was done"):
            await session.log.read(session.log.last)


async def reader_of_a_history_does_not_wait_for_what_no_node_adds(
    a: ClusterNode, b: ClusterNode, write_scenario: WriteScenario
) -> None:
    session = await create_waiting(a, write_scenario)
    found = await b.gateway.sessions.get_history(ADMINISTRATOR, session.id)
    assert found.log.last == session.log.last and await found.log.read(0)
    assert await asyncio.wait_for(found.log.read(found.log.last), 5.0) == []


async def session_that_another_node_had_meanwhile_is_loaded_again(
    a: ClusterNode, b: ClusterNode, write_scenario: WriteScenario
) -> None:
    session = await a.create()
    await a.tidy(6.0)
    at_b = await b.get_forwarded(session.id)
    await say(at_b)
    with pytest.raises(LeaseLost):
        await session.log.read(session.log.last)
    async with at_b.lock:
        await at_b.sleep()
    await b.tidy(6.0)
    with pytest.raises(LeaseLost):
        await begin(session, "by an object that is out of date")
    again = await a.get_forwarded(session.id)
    assert again is not session and again.log.last == at_b.log.last
    await say(again, "again")
    assert await again.history.count() == 4


async def deleted_session_is_deleted_with_its_lease(a: ClusterNode, b: ClusterNode, write_scenario: WriteScenario) -> None:
    session = await a.create()
    await say(session)
    await a.gateway.sessions.delete(ADMINISTRATOR, session.id)
    assert await b.gateway.store.leases.get(session.id) is None and a.node.leases.get(session.id) is None
    for node in (a, b):
        with pytest.raises(NotFound):
            await node.get(session.id)


async def write_after_the_deletion_of_its_session_says_that_it_was_deleted(
    a: ClusterNode, _: ClusterNode, write_scenario: WriteScenario
) -> None:
    session = await a.create()
    assert session.lease is not None
    fenced = a.gateway.store.fenced(session.lease)
    await a.gateway.sessions.delete(ADMINISTRATOR, session.id)
    for refused in (fenced.sessions.update(session.id, native_id="x"), session.delete_stored(), begin(session)):
        with pytest.raises(NotFound, match="deleted"):
            await refused
    assert not session.lost
    # Another write may have been queued before this process knew of the deletion.
    other = await a.create()
    assert other.lease is not None
    fenced, lease = a.gateway.store.fenced(other.lease), other.lease
    deleting = asyncio.create_task(other.delete_stored())
    answers = await asyncio.gather(deleting, *(_updated(fenced, other.id) for _ in range(50)))
    assert set(answers) <= {None, "deleted"} and lease.deleted


async def _updated(store: Store, session_id: str) -> str | None:
    await asyncio.sleep(0)
    try:
        return await store.sessions.update(session_id, native_id="x")
    except NotFound:
        return "deleted"


async def search_finds_what_another_node_has_stored(a: ClusterNode, b: ClusterNode, write_scenario: WriteScenario) -> None:
    session = await a.create()
    for n in range(10):
        await say(session, f"needle {n}")
        searches = [node.gateway.search for node in (b, a)]
        found = [await one.search(ADMINISTRATOR, "needle", agent=None, limit=100, after=None) for one in searches]
        assert [len(results.found) for results in found] == [2 * (n + 1)] * 2


async def fork_is_made_at_the_node_of_its_origin(a: ClusterNode, b: ClusterNode, write_scenario: WriteScenario) -> None:
    origin = await a.create()
    await say(origin)

    async def same(settings: SessionSettings) -> SessionSettings:
        return settings

    fork = await a.gateway.sessions.fork(ADMINISTRATOR, origin, same)
    lease = await b.gateway.store.leases.get(fork.id)
    assert lease is not None and lease.node == a.id and await fork.history.count() == 2


async def waiting_session_of_another_node_is_listed_with_its_calls(
    a: ClusterNode, b: ClusterNode, write_scenario: WriteScenario
) -> None:
    session = await create_waiting(a, write_scenario)
    assert session.state == "waiting"
    [summary] = await b.gateway.sessions.summaries_of([session.id])
    assert summary.state == "waiting" and [call.id for call in summary.pending] == ["sky"]


async def test_what_sessions_of_other_nodes_wait_for_is_read_once(
    tmp_path: Path, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await create_waiting(a, write_scenario)
        read, page = 0, MessageRepository.page

        async def counted(*args: Any) -> Any:
            nonlocal read
            read += 1
            return await page(*args)

        monkeypatch.setattr(MessageRepository, "page", counted)

        async def pending() -> list[str]:
            [summary] = await b.gateway.sessions.summaries_of([session.id])
            assert (summary.waiting_since is not None) == (summary.state == "waiting")
            return [call.id for call in summary.pending]

        assert await pending() == ["sky"] and read
        read = 0
        assert await pending() == ["sky"] and not read
        await rest(await session.submit(permission()))
        await say(session, "again")
        assert await pending() == ([] if session.state == "idle" else ["sky"])


STORIES = (
    session_is_served_by_the_node_that_has_its_lease_and_listed_by_all,
    unused_session_is_free_for_the_other_nodes_which_prefer_the_last_one,
    reader_of_a_history_does_not_wait_for_what_no_node_adds,
    session_that_another_node_had_meanwhile_is_loaded_again,
    deleted_session_is_deleted_with_its_lease,
    write_after_the_deletion_of_its_session_says_that_it_was_deleted,
    search_finds_what_another_node_has_stored,
    fork_is_made_at_the_node_of_its_origin,
    waiting_session_of_another_node_is_listed_with_its_calls,
)


async def test_a_session_is_changed_by_one_node_and_seen_by_all(tmp_path: Path, write_scenario: WriteScenario) -> None:
    """Each story has sessions of its own."""
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        for story in STORIES:
            await story(a, b, write_scenario)
