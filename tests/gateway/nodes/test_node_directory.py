"""Which node gets new work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import pytest

from gateway.cluster.node_directory import LOOK_UP_PAUSE, RETURNS_WITHIN, NodeDirectory
from gateway.errors import NodeUnknown, NoNode, SessionElsewhere
from gateway.security.authentication import request_is_forwarded
from gateway.store.nodes import NodeRecord, NodeReport
from tests.support.manual_clock import ManualClock


def report(node: str, live: int = 0, *, agents: tuple[str, ...] = ("echo",), folders: tuple[str, ...] = ()) -> NodeReport:
    return NodeReport(id=node, address=f"http://{node}", agents=agents, folders=folders, live_agents=live, agent_slots=10)


def record(of: NodeReport, state: Literal["ready", "draining"] = "ready", silent_for: float = 0.0) -> NodeRecord:
    return NodeRecord(of, state, 1.0, 1.0, silent_for)


def directory(own: NodeReport, *others: NodeRecord, clock: ManualClock | None = None) -> NodeDirectory:
    found = NodeDirectory(lambda: own, 10.0, clock or ManualClock())
    found.update([record(own), *others])
    return found


def test_the_least_loaded_node_that_offers_the_agent_is_chosen() -> None:
    nodes = directory(report("a", 3), record(report("b", 2)), record(report("c", 1, agents=("claude",))))
    assert nodes.choose("echo", None) == "b"
    assert nodes.choose("claude", None) == "c"
    assert nodes.choose("codex", None) is None


def place(nodes: NodeDirectory, log_id: str) -> str | None:
    """The node to which a request for a log is forwarded without reading the store."""
    elsewhere = nodes.remembered_elsewhere(log_id)
    return None if elsewhere is None else elsewhere.node_id


async def placed(nodes: NodeDirectory) -> str:
    """The node that a new session goes to."""
    try:
        await nodes.place("echo", None)
    except SessionElsewhere as error:
        return error.node_id
    return nodes.node


async def test_what_was_placed_counts_until_the_heartbeat_of_its_node() -> None:
    clock = ManualClock()
    own, a, z = report("m", 2), record(report("a")), record(report("z"))
    nodes = directory(own, a, z, clock=clock)
    assert [await placed(nodes) for _ in range(9)] == ["a", "z", "a", "z", "m", "a", "z", "m", "a"]
    clock.now += 2.0
    # Only the one of `z` has come since.
    nodes.update([record(own), record(report("a"), silent_for=4.0), record(report("z", 1))])
    assert [await placed(nodes) for _ in range(3)] == ["z", "m", "z"]


async def test_what_was_forwarded_to_this_node_counts_before_its_agent_runs() -> None:
    nodes = directory(report("a"), record(report("b")))
    token = request_is_forwarded.set(True)
    await nodes.place("echo", None)
    request_is_forwarded.reset(token)
    assert await placed(nodes) == "b"


async def test_an_agent_that_runs_is_not_counted_twice_at_this_node() -> None:
    live = 0
    nodes = NodeDirectory(lambda: report("m", live), 10.0, ManualClock())
    nodes.update([record(report("m")), record(report("z", 1))])
    assert await placed(nodes) == "m"
    live = 1
    assert await placed(nodes) == "m", "one each, and this one needs no forwarding"
    assert await placed(nodes) == "z"


@pytest.mark.parametrize(
    ("folder", "chosen"),
    [("/srv/b", "b"), ("/srv/b/x/../y", "b"), ("/srv/bc", None), ("/srv/b/../a", None), ("relative", "b"), (None, "b")],
)
def test_a_node_has_the_folder(folder: str | None, chosen: str | None) -> None:
    nodes = directory(report("a", agents=()), record(report("b", folders=("/srv/b/",))))
    assert nodes.choose("echo", folder) == chosen


def test_nodes_that_are_drained_or_silent_get_nothing() -> None:
    clock = ManualClock()
    drained, silent = record(report("b"), "draining"), record(report("c"), silent_for=9.0)
    nodes = directory(report("a", 9), drained, silent, clock=clock)
    assert nodes.choose("echo", None) == "c"
    clock.now += 2.0
    assert nodes.choose("echo", None) == "a" and not nodes.lives("c") and nodes.lives("a")


def test_the_node_that_had_a_session_last_is_preferred() -> None:
    nodes = directory(report("a"), record(report("b", 9)), record(report("c"), "draining"))
    assert nodes.choose("echo", None, "b") == "b"
    assert nodes.choose("echo", None, "c") == "a"
    assert nodes.choose("echo", None, "unknown") == "a"


@pytest.mark.parametrize(
    "later",
    [
        None,
        record(report("b"), "draining"),
        record(report("b", agents=())),
        record(report("b", folders=("/srv",))),
        replace(record(report("b")), started_at=2.0),
        replace(record(report("b")), report=replace(report("b"), address="http://elsewhere")),
    ],
    ids=["stopped", "drained", "other agents", "other folders", "restarted", "moved"],
)
def test_what_is_remembered_of_a_node_that_may_have_released_its_sessions_is_forgotten(later: NodeRecord | None) -> None:
    own, c = record(report("a")), record(report("c"))
    nodes = directory(report("a"), record(report("b")), c)
    nodes.remember("at b", "b")
    nodes.remember("at c", "c")
    nodes.refresh([own, record(report("b", 5), silent_for=1.0), c])
    assert [place(nodes, "at b"), place(nodes, "at c")] == ["b", "c"]
    nodes.refresh([own, c] if later is None else [own, later, c])
    nodes.refresh([own, record(report("b")), c])
    assert [place(nodes, "at b"), place(nodes, "at c")] == [None, "c"]


async def test_a_request_is_forwarded_once() -> None:
    nodes = directory(report("a", 5), record(report("b")))
    with pytest.raises(SessionElsewhere) as raised:
        await nodes.place("echo", None, "sess_1")
    assert (raised.value.node_id, raised.value.address, raised.value.log_id) == ("b", "http://b", "sess_1")
    token = request_is_forwarded.set(True)
    try:
        await nodes.place("echo", None)
    finally:
        request_is_forwarded.reset(token)
    await nodes.place("unknown agent", None)
    assert isinstance(await nodes.elsewhere("gone", "sess_1"), NodeUnknown)


@pytest.mark.parametrize("why", ["unreachable", "silent", "draining"])
async def test_an_agent_of_nodes_that_take_nothing_new_is_not_unknown(why: str) -> None:
    own, there = report("a"), report("b", agents=("echo", "claude"))
    nodes = directory(own, record(there))
    elsewhere = nodes.offered_elsewhere("claude")
    assert elsewhere is not None and elsewhere.node_id == "b"
    if why == "unreachable":
        nodes.unreachable("b")
    else:
        nodes.update([record(own), record(there, "draining") if why == "draining" else record(there, silent_for=11.0)])
    with pytest.raises(NoNode, match="'claude' is at other nodes only, and none of them takes new work"):
        nodes.offered_elsewhere("claude")
    with pytest.raises(NoNode):
        await nodes.place("claude", None)
    assert nodes.offered_elsewhere("echo") is None and nodes.offered_elsewhere("nobody") is None
    await nodes.place("echo", None)
    await nodes.place("nobody", None)
    token = request_is_forwarded.set(True)
    try:
        assert nodes.offered_elsewhere("claude") is None
        await nodes.place("claude", None)
    finally:
        request_is_forwarded.reset(token)


@pytest.mark.parametrize("state", ["ready", "draining"])
async def test_a_node_that_is_silent_for_long_is_not_waited_for(state: Literal["ready", "draining"]) -> None:
    """What is wrong with the request is reported: that there is no such agent, or why it cannot start here."""
    clock = ManualClock()
    nodes = directory(report("a"), record(report("b", agents=("claude",)), state, RETURNS_WITHIN - 1.0), clock=clock)
    with pytest.raises(NoNode):
        await nodes.place("claude", None)
    clock.now += 1.0
    await nodes.place("claude", None)
    assert nodes.offered_elsewhere("claude") is None


async def test_an_agent_that_a_node_has_in_another_folder_is_not_out_of_reach() -> None:
    nodes = directory(report("a"), record(report("b", agents=("claude",), folders=("/work",))))
    await nodes.place("claude", "/elsewhere")


async def test_a_drained_node_without_others_refuses_new_work() -> None:
    nodes = directory(report("a"))
    nodes.update([record(report("a"), "draining")])
    # With a Retry-After for the client: another node may be back soon.
    with pytest.raises(NoNode, match="no other node takes this work of agent 'echo'; try again in some seconds"):
        await nodes.place("echo", None)


async def test_a_node_that_is_not_known_is_looked_up_at_once_but_not_with_each_request() -> None:
    clock, stored, asked = ManualClock(), [record(report("a"))], 0

    async def look_up() -> list[NodeRecord]:
        nonlocal asked
        asked += 1
        return stored

    nodes = NodeDirectory(lambda: report("a"), 10.0, clock, look_up)
    assert isinstance(await nodes.elsewhere("new", "sess_1"), NodeUnknown)
    stored.append(record(report("new")))
    assert isinstance(await nodes.elsewhere("new", "sess_1"), NodeUnknown) and asked == 1
    clock.now += LOOK_UP_PAUSE
    found = await asyncio.gather(*(nodes.elsewhere("new", "sess_1") for _ in range(3)))
    assert [isinstance(error, SessionElsewhere) for error in found] == [True] * 3 and asked == 2
    clock.now += LOOK_UP_PAUSE
    await nodes.elsewhere("new", "sess_1")
    assert asked == 2


async def test_a_node_that_cannot_be_reached_is_looked_up_for_another_address() -> None:
    clock = ManualClock()
    moved = replace(record(replace(report("b"), address="http://elsewhere")), started_at=2.0)

    async def look_up() -> list[NodeRecord]:
        return [record(report("a")), moved]

    nodes = NodeDirectory(lambda: report("a", 5), 10.0, clock, look_up)
    nodes.update([record(report("a")), record(report("b"))])
    nodes.unreachable("b")
    error = await nodes.elsewhere("b", "sess_1")
    assert isinstance(error, SessionElsewhere) and error.address == "http://elsewhere"
    assert nodes.choose("echo", None) == "b", "it was started again"


class Updated:
    """The directory of the node `a`, whose heartbeats and those of the others a test reports."""

    def __init__(self) -> None:
        self.clock, self.lost = ManualClock(), list[str]()
        self.directory = NodeDirectory(lambda: report("a", 1), 10.0, self.clock)
        self.directory.on_lost = self.lost.append

    def update(self, **silent_for: float) -> list[str]:
        """Update with nodes that have been silent for so many seconds; return those that are lost since."""
        self.clock.now += 3
        self.lost.clear()
        live = {"b": 0}
        self.directory.update(
            [record(report(node, live.get(node, 1)), silent_for=seconds) for node, seconds in {"a": 0.0, **silent_for}.items()]
        )
        return self.lost


def test_a_node_is_lost_when_it_was_silent_at_two_updates_or_has_stopped() -> None:
    known = Updated()
    assert known.update(b=0, c=0) == []
    assert known.update(b=11, c=0) == []
    assert known.update(b=14, c=0) == ["b"]
    assert known.update(b=17, c=0) == []
    assert known.update(b=20) == ["c"]
    assert known.update(b=1) == []
    assert known.update() == ["b"]
    # While the database was gone, all of them were silent, this one included.
    assert known.update(b=0, c=0) == []
    assert known.update(b=12, c=12) == []
    assert known.update(b=1, c=1) == []


async def test_nothing_is_sent_to_a_lost_node_until_it_reports_again() -> None:
    known = Updated()

    async def kind() -> type[Exception]:
        return type(await known.directory.elsewhere("b", "sess_1"))

    # This node has started after the last heartbeat of the other one.
    assert known.update(b=11) == [] and await kind() is SessionElsewhere
    assert known.update(b=14) == ["b"] and await kind() is NodeUnknown
    assert known.update(b=17) == [] and await kind() is NodeUnknown
    known.directory.refresh([record(report("a")), record(report("b"), silent_for=1)])
    assert await kind() is SessionElsewhere


def test_what_is_new_does_not_go_to_a_node_that_cannot_be_reached() -> None:
    known = Updated()
    known.update(b=0)
    assert known.directory.choose("echo", None) == "b"
    known.directory.unreachable("b")
    assert known.directory.choose("echo", None) == "a"
    assert known.directory.choose("echo", None, "b") == "a"
    known.clock.now += 10.0
    known.update(b=0)
    assert known.directory.choose("echo", None) == "b"
