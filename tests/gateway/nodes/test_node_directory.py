"""Which node gets new work."""

from __future__ import annotations

from typing import Literal

import pytest

from gateway.errors import SessionElsewhere, ShuttingDown
from gateway.nodes.forwarded_requests import request_is_forwarded
from gateway.nodes.node_directory import NodeDirectory, NodeUnknown
from gateway.store.nodes import NodeRecord, NodeReport
from tests.gateway.nodes.three_nodes import Clock


def report(node: str, live: int = 0, *, agents: tuple[str, ...] = ("echo",), folders: tuple[str, ...] = ()) -> NodeReport:
    return NodeReport(id=node, address=f"http://{node}", agents=agents, folders=folders, live_agents=live, agent_slots=10)


def record(of: NodeReport, state: Literal["ready", "draining"] = "ready", silent_for: float = 0.0) -> NodeRecord:
    return NodeRecord(of, 10, state, 1.0, 1.0, silent_for)


def directory(own: NodeReport, *others: NodeRecord, clock: Clock | None = None) -> NodeDirectory:
    found = NodeDirectory(lambda: own, 10.0, clock or Clock())
    found.update([record(own), *others])
    return found


def test_the_least_loaded_node_that_offers_the_agent_is_chosen() -> None:
    nodes = directory(report("a", 3), record(report("b", 2)), record(report("c", 1, agents=("claude",))))
    assert nodes.choose("echo", None) == "b"
    assert nodes.choose("claude", None) == "c"
    assert nodes.choose("codex", None) is None


def test_of_equal_nodes_this_one_is_chosen_and_what_was_placed_counts_until_the_next_heartbeat() -> None:
    nodes = directory(report("m", 2), record(report("a")), record(report("z")))
    assert [nodes.choose("echo", None) for _ in range(6)] == ["a", "z", "a", "z", "m", "m"]
    nodes.update([record(report("a")), record(report("z"))])
    assert nodes.choose("echo", None) == "a"


@pytest.mark.parametrize(
    ("folder", "chosen"),
    [("/srv/b", "b"), ("/srv/b/x/../y", "b"), ("/srv/bc", None), ("/srv/b/../a", None), ("relative", "b"), (None, "b")],
)
def test_a_node_has_the_folder(folder: str | None, chosen: str | None) -> None:
    nodes = directory(report("a", agents=()), record(report("b", folders=("/srv/b/",))))
    assert nodes.choose("echo", folder) == chosen


def test_nodes_that_are_drained_or_silent_get_nothing() -> None:
    clock = Clock()
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


async def test_a_request_is_passed_on_once() -> None:
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


async def test_a_drained_node_without_others_refuses_new_work() -> None:
    nodes = directory(report("a"))
    nodes.update([record(report("a"), "draining")])
    with pytest.raises(ShuttingDown, match="drained"):
        await nodes.place("echo", None)
