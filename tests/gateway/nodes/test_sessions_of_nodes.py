"""Which node changes a session, and what the others see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.events import SessionEnd
from gateway.errors import LeaseLost, NotFound, SessionElsewhere
from gateway.events.turn_reader import Turn
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.settings import SessionSettings
from gateway.store import RunRecord, Store
from gateway.store.messages import MessageRepository
from tests.gateway.nodes.three_nodes import begin, create_waiting, permission, rest, run_nodes, say, until

WriteScenario = Callable[..., str]


async def test_a_session_is_changed_by_the_node_that_has_its_lease_and_read_by_all(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        with pytest.raises(SessionElsewhere) as raised:
            await b.get(session.id)
        assert (raised.value.node_id, raised.value.address, raised.value.log_id) == (a.id, "http://a:7700", session.id)
        assert await a.get(session.id) is session
        await say(session)
        read = await b.get(session.id, reading=True)
        assert read.log.last == session.log.last and await read.history.count() == 2 and read.state == "idle"
        with pytest.raises(LeaseLost):
            await begin(read)
        async with read.lock:
            # No gateway closes a session that is only read.
            await read.sleep()
        assert [found.id for found in await b.gateway.sessions.page(ADMINISTRATOR, 10, None)] == [session.id]


async def test_a_reader_on_another_node_sees_a_turn_while_it_runs_and_its_end(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    scenario = write_scenario([{"text": "working"}, {"wait_for_file": "go"}, {"text": "done"}])
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create("script", scenario=scenario)
        turn = await begin(session)
        await until(turn, "working")
        await session.log.written()
        read = await b.get(session.id, reading=True)
        assert read.state == "running" and read.turn_began == 1
        following = asyncio.create_task(rest(Turn(read.log, 0)))
        (tmp_path / "scenes" / "go").touch()
        await rest(turn)
        await b.node.followed.poll()
        assert isinstance((await following)[-1], SessionEnd) and read.log.last == session.log.last
        ended = asyncio.create_task(read.log.read(read.log.last))
        await a.gateway.sessions.delete(ADMINISTRATOR, session.id)
        await b.node.followed.poll()
        assert await ended == [] and read.log.deleted


async def test_an_unused_session_is_free_for_the_other_nodes_which_prefer_the_last_one(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
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


async def test_a_session_that_another_node_had_meanwhile_is_loaded_again(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await a.tidy(6.0)
        following = asyncio.create_task(rest(Turn(session.log, 0)))
        at_b = await b.get_forwarded(session.id)
        said = await say(at_b)
        await a.node.followed.poll()
        assert await following == said, "who follows it here gets what another node writes"
        async with at_b.lock:
            await at_b.sleep()
        await b.tidy(6.0)
        with pytest.raises(LeaseLost):
            await begin(session, "by an object that is out of date")
        again = await a.get_forwarded(session.id)
        assert again is not session and again.log.last == at_b.log.last
        await say(again, "again")
        assert await again.history.count() == 4


async def test_a_reader_does_not_take_the_lease(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await a.tidy(6.0)
        await b.get(session.id, reading=True)
        lease = await b.gateway.store.leases.get(session.id)
        assert lease is not None and lease.released and lease.node == a.id


async def test_a_deleted_session_is_deleted_with_its_lease(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await say(session)
        await a.gateway.sessions.delete(ADMINISTRATOR, session.id)
        assert await b.gateway.store.leases.get(session.id) is None and a.node.leases.all == []
        for node in (a, b):
            with pytest.raises(NotFound):
                await node.get(session.id)


async def test_a_write_after_the_deletion_of_its_session_says_that_it_was_deleted(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, _):
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


async def test_the_usage_of_a_turn_at_work_is_seen_on_another_node(tmp_path: Path, write_scenario: WriteScenario) -> None:
    used = {"usage": {"input_tokens": 1, "output_tokens": 2, "cost_usd": 0.1}}
    call = {"id": "sky", "name": "weather", "ask": True, "result": "sun"}
    work = [used, {"text": "x"}, used, {"text": "working"}, {"wait_for_file": "go"}, {"tool_call": call}, used, {"text": "y"}]
    scenario = write_scenario({"when": "^first$", "steps": [used]}, {"when": "^work$", "steps": [*work, {"wait_for_file": "on"}]})
    async with run_nodes(tmp_path, "a", "b") as (a, b):

        async def input_tokens() -> list[int]:
            await session.log.require_written()
            read = await b.get(session.id, reading=True)
            [listed] = await b.gateway.sessions.summaries_of([session.id])
            found = (await b.gateway.sessions.summary(read), listed, await a.gateway.sessions.summary(session))
            return [summary.usage.input_tokens for summary in found if summary.usage is not None]

        session = await a.create("script", scenario=scenario)
        assert await input_tokens() == []
        await say(session, "first")
        assert await input_tokens() == [1, 1, 1]
        turn = await begin(session, "work")
        await until(turn, "working")
        assert await input_tokens() == [3, 3, 3]
        (tmp_path / "scenes" / "go").touch()
        await rest(turn)
        assert session.state == "waiting" and await input_tokens() == [3, 3, 3]
        answered = await session.submit(permission())
        await until(answered, "y")
        assert await input_tokens() == [4, 4, 4]
        (tmp_path / "scenes" / "on").touch()
        await rest(answered)
        assert await input_tokens() == [4, 4, 4]


async def test_the_search_finds_what_another_node_has_stored(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        for n in range(10):
            await say(session, f"needle {n}")
            searches = [node.gateway.search for node in (b, a)]
            found = [await one.search(ADMINISTRATOR, "needle", agent=None, limit=100, after=None) for one in searches]
            assert [len(results.found) for results in found] == [2 * (n + 1)] * 2


async def test_a_fork_is_made_at_the_node_of_its_origin(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        origin = await a.create()
        await say(origin)

        async def same(settings: SessionSettings) -> SessionSettings:
            return settings

        fork = await a.gateway.sessions.fork(ADMINISTRATOR, origin, same)
        lease = await b.gateway.store.leases.get(fork.id)
        assert lease is not None and lease.node == a.id and await fork.history.count() == 2


async def test_a_waiting_session_of_another_node_is_read_with_its_calls(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await create_waiting(a, write_scenario)
        read = await b.get(session.id, reading=True)
        assert read.state == "waiting" and [call.id for call in read.pending_calls] == ["sky"]
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
        assert not b.node.followed._logs, "nobody follows them"
        await rest(await session.submit(permission()))
        await say(session, "again")
        assert await pending() == ([] if session.state == "idle" else ["sky"])


async def test_a_run_that_ends_while_its_session_is_read_elsewhere_has_all_of_its_events(
    tmp_path: Path, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has the last event already, from the session's node, is not told that there is none."""
    scenario = write_scenario([{"text": "working"}, {"wait_for_file": "go"}, {"text": "over"}])
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create("script", scenario=scenario)
        turn = await begin(session)
        await until(turn, "working")
        await session.log.written()
        last = b.gateway.store.runs.last

        async def ends_before(session_id: str) -> RunRecord | None:
            (tmp_path / "scenes" / "go").touch()
            await rest(turn)
            await session.log.written()
            return await last(session_id)

        monkeypatch.setattr(b.gateway.store.runs, "last", ends_before)
        read = await b.get(session.id, reading=True)
        assert read.may_have(session.log.last) and not read.may_have(session.log.last + 1)
