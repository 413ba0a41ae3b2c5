"""A node that dies, one that was stopped and goes on, and a database that was away: who writes what then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.contract.events import AgentToken, Error, SessionEnd
from gateway.errors import LeaseLost, NodeUnknown, SessionElsewhere, StoreUnavailable
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.one_shot_tasks import Task
from gateway.runs.recovery import UNSEEN, WHY
from gateway.security.authentication import ADMINISTRATOR
from gateway.store import Store
from tests.gateway.nodes.three_nodes import (
    INTERVALS,
    ClusterNode,
    begin,
    create_waiting,
    permission,
    rest,
    run_node,
    run_nodes,
    say,
    until,
)
from tests.gateway.store.expiry import expire, silence

WriteScenario = Callable[..., str]
HANGS = [{"text": "working"}, {"hang": True}]
TAKEOVER = (0.0, 2.0, 2.0)
"""Looks of which the last one takes over what the first one has seen."""


async def test_a_dead_nodes_session_is_taken_over_and_its_run_ends_with_an_error(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    scenario = write_scenario({"when": "hang", "steps": HANGS}, {"steps": [{"remember": True}]})
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create("script", scenario=scenario)
        turn = await begin(session, "hang")
        await until(turn, "working")
        await session.log.written()
        stored = session.log.last
        await silence(b.gateway.store, a.id)
        changes = b.gateway.sessions.changes.listen(ADMINISTRATOR)
        assert await b.look(0.0, 2.0, 1.9) == 0
        with pytest.raises(SessionElsewhere):
            await b.get(session.id)
        assert await b.look(0.2) == 1
        assert changes.drain() == {session.id: "changed"}
        taken = await b.get(session.id, reading=True)
        error, end = [entry.event for entry in await taken.log.read(taken.log.last - 2)]
        assert isinstance(error, Error) and error.message == WHY
        assert isinstance(end, SessionEnd) and end.stop_reason == "error"
        assert taken.log.last == stored + UNSEEN + 2
        assert await b.get(session.id) is taken
        assert taken.state == "idle" and taken.lease is not None and taken.lease.token == 3
        said = await say(taken, "again")
        assert any(isinstance(event, AgentToken) and "hang" in event.text for event in said), "the agent is seeded"


async def test_a_session_is_loaded_only_when_its_runs_have_ended_that_the_dead_node_has_left(
    tmp_path: Path, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = write_scenario(HANGS)
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create("script", scenario=scenario)
        await until(await begin(session), "working")
        close_runs = b.node.takeover._close_runs
        closing, go_on = asyncio.Event(), asyncio.Event()

        async def close_slowly(store: Store, log_id: str) -> int:
            closing.set()
            await go_on.wait()
            return await close_runs(store, log_id)

        monkeypatch.setattr(b.node.takeover, "_close_runs", close_slowly)
        await silence(b.gateway.store, a.id)
        looking = asyncio.create_task(b.look(*TAKEOVER))
        await closing.wait()
        with pytest.raises(NodeUnknown, match="send the request again"):
            await b.get(session.id)
        go_on.set()
        assert await looking == 1
        taken = await b.get(session.id)
        assert taken.log.last == await b.gateway.store.events.last_seq(session.id)
        assert taken.lease is not None and taken.lease.held


async def test_a_session_that_was_deleted_right_before_is_not_taken_over(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await a.gateway.sessions.delete(ADMINISTRATOR, session.id)
        assert await b.node.leases.take_over(session.id, 1) is None
        assert b.node.leases.all == [] and await b.gateway.store.leases.get(session.id) is None


async def test_a_log_whose_runs_cannot_be_closed_does_not_hold_up_the_others(
    tmp_path: Path, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = write_scenario(HANGS)
    async with run_nodes(tmp_path, "a", "b", "c") as (a, b, c):
        damaged, other = await a.create("script", scenario=scenario), await c.create("script", scenario=scenario)
        for session in (damaged, other):
            await until(await begin(session), "working")
            await session.log.written()
        close_runs = b.node.takeover._close_runs

        async def fail(store: Store, log_id: str) -> int:
            if log_id == damaged.id:
                raise ValueError("an event that cannot be read")
            return await close_runs(store, log_id)

        monkeypatch.setattr(b.node.takeover, "_close_runs", fail)
        await silence(b.gateway.store, a.id)
        with pytest.raises(ValueError, match="cannot be read"):
            await b.look(*TAKEOVER)
        await silence(b.gateway.store, c.id)
        for seconds in TAKEOVER:
            with pytest.raises(ValueError, match="cannot be read"):
                await b.look(seconds)
        assert [run.log_id for run in await b.gateway.store.runs.unfinished()] == [damaged.id]
        monkeypatch.undo()
        await b.look(0.1)
        assert await b.gateway.store.runs.unfinished() == []


async def test_a_node_that_was_stopped_for_long_writes_nothing_once_it_is_taken_over(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    scenario = write_scenario([{"text": "working"}, {"wait_for_file": "go"}, {"text": "too late"}, {"hang": True}])
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create("script", scenario=scenario)
        turn = await begin(session)
        await until(turn, "working")
        await session.log.written()
        stored, agent = session.log.last, session.live
        await silence(b.gateway.store, a.id)
        assert await b.look(*TAKEOVER) == 1
        a.clock.now += 15.0
        (tmp_path / "scenes" / "go").touch()
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(rest(turn), 20)
        await asyncio.gather(*a.gateway.sessions._background)
        assert agent is not None and not agent.alive
        assert await a.gateway.store.events.last_seq(session.id) == stored + UNSEEN + 2
        assert a.gateway.sessions.held == [] and a.node.leases.all == []
        # Nobody has it: the node that took it over has released it.
        again = await a.get(session.id)
        assert again is not session and again.log.last == stored + UNSEEN + 2
        events = [entry.event for entry in await again.log.read(0)]
        assert not any(isinstance(event, AgentToken) and "late" in event.text for event in events)
        assert isinstance(events[-2], Error) and events[-2].message == WHY


async def test_a_node_that_was_stopped_goes_on_where_nobody_has_taken_over(tmp_path: Path, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"text": "working"}, {"wait_for_file": "go"}, {"text": "in time"}])
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create("script", scenario=scenario)
        turn = await begin(session)
        await until(turn, "working")
        await silence(b.gateway.store, a.id)
        assert await b.look(0.0, 2.0) == 0
        a.clock.now += 15.0
        (tmp_path / "scenes" / "go").touch()
        events = await rest(turn)
        assert isinstance(events[-1], SessionEnd) and events[-1].stop_reason == "end_turn"
        assert session.lease is not None and session.lease.is_fresh and session.lease.token == 1
        assert await b.look(2.0, 2.0) == 0, "it was renewed"


async def test_a_prompt_is_not_given_after_the_lease_was_lost(tmp_path: Path, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"write_file": {"path": "prompted", "text": ""}}])
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create("script", scenario=scenario)
        await silence(b.gateway.store, a.id)
        assert await b.look(*TAKEOVER) == 1
        with pytest.raises(Exception, match="lost its lease"):
            await begin(session)
        assert not (tmp_path / "scenes" / "prompted").exists()
        assert (await b.gateway.store.runs.unfinished(session.id)) == []


async def test_a_waiting_run_of_a_dead_node_goes_on_waiting(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await create_waiting(a, write_scenario)
        await silence(b.gateway.store, a.id)
        assert await b.look(*TAKEOVER) == 1
        taken = await b.get(session.id)
        assert taken.state == "waiting" and [call.id for call in taken.pending_calls] == ["sky"]
        events = await rest(await taken.submit(permission()))
        assert isinstance(events[-1], SessionEnd) and events[-1].stop_reason == "end_turn"


async def test_a_database_that_was_away_longer_than_a_lease_makes_nobody_take_over(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b", "c") as nodes:
        a = nodes[0]
        sessions = [await node.create() for node in nodes]
        for node in nodes:
            await silence(a.gateway.store, node.id)
        for node in nodes:
            # The search after that finds all of them; each node has had its heartbeat by the next one.
            assert await node.look(15.0) == 0
            await node.node.beat()
        assert [await node.look(2.0, 2.0, 2.0) for node in nodes] == [0, 0, 0]
        assert all(session.lease is not None and session.lease.held for session in sessions)


async def test_a_lease_is_observed_anew_after_a_pause_or_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        await a.create()
        await silence(b.gateway.store, a.id)
        assert await b.look(0.0, 2.0, 15.0) == 0, "this node was stopped"
        assert await b.look(2.0) == 0

        async def fail(*_: object) -> None:
            raise StoreUnavailable("the server does not answer")

        with monkeypatch.context() as patched:
            patched.setattr(b.gateway.store.leases, "abandoned", fail)
            with pytest.raises(StoreUnavailable):
                await b.look(2.0)
        assert await b.look(0.0, 2.0) == 0
        with monkeypatch.context() as patched:
            patched.setattr(b.gateway.store.nodes, "beat", fail)
            with pytest.raises(StoreUnavailable):
                await b.node.beat()
        assert await b.look(2.0, 2.0) == 0
        assert await b.look(2.0) == 1


async def test_of_several_nodes_one_takes_over(tmp_path: Path, write_scenario: WriteScenario) -> None:
    scenario = write_scenario(HANGS)
    async with run_nodes(tmp_path, "a", "b", "c") as (a, b, c):
        sessions = [await a.create("script", scenario=scenario) for _ in range(4)]
        for session in sessions:
            await until(await begin(session), "working")
        await silence(b.gateway.store, a.id)
        assert await b.look(0.0, 2.0) + await c.look(0.0, 2.0) == 0
        assert sum(await asyncio.gather(b.look(2.0), c.look(2.0))) == 4
        runs = await b.gateway.store.runs.last_of_each([session.id for session in sessions])
        assert [run.stop_reason for run in runs.values()] == ["error"] * 4
        ends = [await b.gateway.store.events.read(session.id, UNSEEN) for session in sessions]
        assert [len(rows) for rows in ends] == [1] * 4


async def test_a_request_takes_no_expired_lease(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await expire(a.gateway.store, session.id)
        with pytest.raises(SessionElsewhere):
            await b.get(session.id)
        assert await b.look(0.0, 2.0, 2.0, 2.0) == 0, "its node has heartbeats"
        await a.node.beat()
        await say(session)


async def test_a_node_that_starts_again_recovers_its_own_sessions_at_once(tmp_path: Path, write_scenario: WriteScenario) -> None:
    scenario = write_scenario(HANGS)
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        own, other = await a.create("script", scenario=scenario), await b.create("script", scenario=scenario)
        waits = await create_waiting(a, write_scenario)
        for session in (own, other):
            await until(await begin(session), "working")
        # The first one is connected still, without a heartbeat.
        async with run_node(tmp_path, "a", replace(INTERVALS, silent=0.1)) as again:
            assert again.id == a.id
            assert (await again.get(own.id)).state == "idle" and (await again.get(waits.id)).state == "waiting"
            assert other.busy and other.lease is not None
            await b.node.beat()
            assert other.lease.held
            await kill(a)


async def kill(node: ClusterNode) -> None:
    """The process of a node that has been killed stores nothing: here, it has lost what it had."""
    for lease in node.node.leases.all:
        node.node.leases.lose(lease)
    await asyncio.gather(*node.gateway.sessions._background)


async def test_tasks_of_a_dead_node(tmp_path: Path, write_scenario: WriteScenario) -> None:
    write_scenario(HANGS, name="hangs.json")
    key = IdempotencyKey.of(None, "execute", "once", [])
    options = {"script": {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": "hangs.json"}}}
    async with run_nodes(tmp_path, "a", "b", agents=options) as (a, b):
        turn = await a.gateway.tasks.execute(Task("script", "go"), key)
        await until(turn, "working")
        [task] = a.gateway.tasks.tasks
        with pytest.raises(SessionElsewhere) as raised:
            await b.gateway.tasks.execute(Task("script", "go"), key)
        assert (raised.value.node_id, raised.value.log_id) == (a.id, task.id)
        await silence(b.gateway.store, a.id)
        assert await b.look(*TAKEOVER) == 1
        events = await rest(await b.gateway.tasks.execute(Task("script", "go"), key))
        assert isinstance(events[-1], SessionEnd) and events[-1].stop_reason == "error"
        lease = await b.gateway.store.leases.get(task.id)
        assert lease is not None and lease.released
        a.clock.now += 15.0
        with pytest.raises(Exception, match="lost its lease"):
            await a.node.leases.all[0].confirm()
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(rest(turn), 20)
        assert await asyncio.wait_for(task.run.wait(), 20) is None
