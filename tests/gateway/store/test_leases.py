"""Leases and fenced writes, as the store has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import LeaseLost
from gateway.store import EventRow, RunRecord, SessionRecord, Store
from gateway.store.leases import Lease
from gateway.store.nodes import NodeReport
from tests.gateway.store.expiry import expire
from tests.support.stores import store_url


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(store_url(tmp_path))
    yield opened
    await opened.close()


class Held:
    """A fence with the token that it was given."""

    held, deleted = True, False

    def __init__(self, lease: Lease) -> None:
        self.log_id, self.node, self.token = lease.log_id, lease.node, lease.token
        self.lost = 0

    async def hold(self) -> None:
        raise AssertionError("it is held")

    def lose(self) -> None:
        self.lost += 1


async def test_one_of_the_nodes_that_acquire_at_the_same_time_has_the_lease(store: Store) -> None:
    found = await asyncio.gather(*(store.leases.acquire("sess_1", f"node {n}", 10.0) for n in range(8)))
    assert len({lease.node for lease in found}) == 1 and {lease.token for lease in found} == {1}
    assert all(lease.valid for lease in found)


async def test_a_lease_is_acquired_again_after_its_release_only_with_the_next_token(store: Store) -> None:
    first = await store.leases.acquire("sess_1", "a", 10.0)
    assert await store.leases.acquire("sess_1", "b", 10.0) == first
    await store.leases.release([("sess_1", 7)])
    assert (await store.leases.acquire("sess_1", "b", 10.0)).node == "a", "a release with another token changes nothing"
    await store.leases.release([("sess_1", 1)])
    released = await store.leases.get("sess_1")
    assert released is not None and released.released and not released.valid and released.node == "a"
    second = await store.leases.acquire("sess_1", "b", 10.0)
    assert (second.node, second.token, second.valid) == ("b", 2, True)


async def test_the_lease_of_the_node_itself_is_acquired_with_the_next_token(store: Store) -> None:
    await store.leases.acquire("sess_1", "a", 10.0)
    assert (await store.leases.acquire("sess_1", "a", 10.0)).token == 2


async def test_an_expired_lease_is_acquired_only_with_its_token(store: Store) -> None:
    await store.leases.acquire("sess_1", "a", 10.0)
    assert (await store.leases.acquire("sess_1", "b", 10.0, expected=1)).node == "a", "it has not expired"
    await expire(store, "sess_1")
    assert (await store.leases.acquire("sess_1", "b", 10.0)).node == "a"
    assert (await store.leases.acquire("sess_1", "b", 10.0, expected=7)).node == "a"
    takers = await asyncio.gather(*(store.leases.acquire("sess_1", node, 10.0, expected=1) for node in "bcd"))
    assert len({lease.node for lease in takers}) == 1 and {lease.token for lease in takers} == {2}


async def test_renewal_extends_what_the_node_still_has(store: Store) -> None:
    for log_id, node in (("sess_1", "a"), ("sess_2", "a"), ("sess_3", "b"), ("sess_4", "a")):
        await store.leases.acquire(log_id, node, 10.0)
    await store.leases.release([("sess_2", 1)])
    await expire(store, "sess_1")
    await expire(store, "sess_4")
    await store.leases.acquire("sess_4", "b", 10.0, expected=1)
    assert await store.leases.renew("a", 10.0) == {"sess_1": 1}
    renewed = await store.leases.get("sess_1")
    assert renewed is not None and renewed.valid
    assert [lease.log_id for lease in await store.leases.unreleased("b")] == ["sess_3", "sess_4"]
    assert await store.leases.count_by_node() == {"a": 1, "b": 2}


async def test_abandoned_leases_are_expired_ones_of_silent_nodes(store: Store) -> None:
    await store.nodes.start(NodeReport(id="alive", address="http://alive"), 86400.0)
    for log_id, node in (("sess_1", "dead"), ("sess_2", "alive"), ("sess_3", "dead"), ("sess_4", "dead")):
        await store.leases.acquire(log_id, node, 10.0)
    for log_id in ("sess_1", "sess_2", "sess_4"):
        await expire(store, log_id)
    await store.leases.release([("sess_4", 1)])
    assert [lease.log_id for lease in await store.leases.abandoned(10.0)] == ["sess_1"]


async def test_a_fenced_write_without_its_lease_changes_nothing_and_others_of_its_group_succeed(store: Store) -> None:
    names = [f"sess_{n}" for n in range(6)]
    fences = [Held(await store.leases.acquire(name, "a", 10.0)) for name in names]
    for name in names[::2]:
        await expire(store, name)
        await store.leases.acquire(name, "b", 10.0, expected=1)
    # The first write keeps the thread busy, so that the others are one group.
    writes = [store.touch()]
    for name, fence in zip(names, fences, strict=True):
        writes.append(store.fenced(fence).events.append(EventRow(name, 1, 1, b"{}")))
    found = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(one) for one in found[1:]] == [LeaseLost, type(None)] * 3
    assert [await store.events.last_seq(name) for name in names] == [0, 1] * 3
    assert [fence.lost for fence in fences] == [1, 0] * 3


async def test_a_failing_write_of_a_group_does_not_let_a_fenced_one_through(store: Store) -> None:
    fence = Held(await store.leases.acquire("sess_1", "a", 10.0))
    await expire(store, "sess_1")
    await store.leases.acquire("sess_1", "b", 10.0, expected=1)
    await store.events.append(EventRow("sess_2", 1, 1, b"{}"))
    duplicate = store.events.append(EventRow("sess_2", 1, 1, b"{}"))
    lost = store.fenced(fence).events.append(EventRow("sess_1", 1, 1, b"{}"))
    other = store.events.append(EventRow("sess_3", 1, 1, b"{}"))
    _, failed, refused, stored = await asyncio.gather(store.touch(), duplicate, lost, other, return_exceptions=True)
    assert failed is not None and isinstance(refused, LeaseLost) and stored is None
    assert [await store.events.last_seq(name) for name in ("sess_1", "sess_3")] == [0, 1]


async def test_a_log_is_created_with_its_lease_and_deleted_with_it(store: Store) -> None:
    record = SessionRecord("sess_1", "echo", {}, created_at=1.0)
    await store.creating("sess_1", "a", 10.0).sessions.create(record, [], RunRecord("run_1", "sess_1", "waiting", None, 1, 1.0))
    lease = await store.leases.get("sess_1")
    assert lease is not None and (lease.node, lease.token, lease.valid) == ("a", 1, True)
    with pytest.raises(Exception, match=r"UNIQUE|duplicate"):
        await store.creating("sess_2", "a", 10.0).sessions.create(record, [])
    assert await store.leases.get("sess_2") is None, "the two are one transaction"
    await store.fenced(Held(lease)).sessions.delete("sess_1")
    assert await store.leases.get("sess_1") is None
    with pytest.raises(LeaseLost):
        await store.fenced(Held(lease)).events.append(EventRow("sess_1", 1, 1, b"{}"))


async def test_logs_whose_unfinished_runs_never_had_a_lease(store: Store) -> None:
    for name in ("sess_1", "sess_2"):
        await store.runs.start(RunRecord(f"run of {name}", name, "running", None, 1))
    await store.leases.acquire("sess_1", "a", 10.0)
    assert await store.runs.unfinished_without_lease() == ["sess_2"]
    assert [run.log_id for run in await store.runs.unfinished("sess_1")] == ["sess_1"]


async def test_heartbeats(store: Store) -> None:
    report = NodeReport(id="a", address="http://a", agents=("echo",), labels=("gpu",), folders=("/srv",), agent_slots=16)
    await store.nodes.start(report, 86400.0)
    await store.leases.acquire("sess_1", "a", 10.0)
    assert await store.nodes.drain("a") and not await store.nodes.drain("b")
    tokens, nodes = await store.nodes.beat(NodeReport(id="a", address="http://a", live_agents=3), 10.0)
    [node] = nodes
    assert tokens == {"sess_1": 1} and node.report.live_agents == 3
    assert node.state == "draining", "a heartbeat does not undo it"
    assert 0 <= node.silent_for < 5 and abs(node.heartbeat_at - node.started_at) < 5
    await store.nodes.start(report, 86400.0)
    [node] = await store.nodes.all()
    assert node.state == "ready" and node.report == report
    await store.nodes.remove("a")
    _, [node] = await store.nodes.beat(report, 10.0)
    assert node.report == report, "a node whose row was deleted is stored again"
