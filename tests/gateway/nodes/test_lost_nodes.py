"""Which nodes count as lost, so that what waits for them ends, and which ones get nothing new."""

from __future__ import annotations

from gateway.cluster.node_directory import NodeDirectory
from gateway.errors import NodeUnknown, SessionElsewhere
from gateway.store.nodes import NodeRecord, NodeReport
from tests.support.manual_clock import ManualClock

SILENT = 10.0


def report(node: str) -> NodeReport:
    return NodeReport(
        id=node,
        address=f"http://{node}",
        agents=("echo",),
        labels=(),
        folders=(),
        version="1",
        live_agents=0 if node == "b" else 1,
        running_turns=0,
        agent_slots=16,
    )


class Directory:
    """The directory of the node `a`, at a time that the test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lost: list[str] = []
        self.directory = NodeDirectory(lambda: report("a"), SILENT, self.clock)
        self.directory.on_lost = self.lost.append

    def update(self, **silent_for: float) -> list[str]:
        """Update with nodes that have been silent for so many seconds; return those that are lost since."""
        self.clock.now += 3
        self.lost.clear()
        self.directory.update([record(node, seconds) for node, seconds in {"a": 0.0, **silent_for}.items()])
        return self.lost


def record(node: str, silent_for: float) -> NodeRecord:
    fields = {name: None for name in NodeRecord.__dataclass_fields__}
    return NodeRecord(**{**fields, "report": report(node), "state": "ready", "silent_for": silent_for})  # type: ignore[arg-type]


def test_a_node_is_lost_when_it_was_silent_at_two_updates_or_has_stopped() -> None:
    known = Directory()
    assert known.update(b=0, c=0) == []
    assert known.update(b=11, c=0) == []
    assert known.update(b=14, c=0) == ["b"]
    assert known.update(b=17, c=0) == []
    assert known.update(b=20) == ["c"]
    assert known.update(b=1) == []
    assert known.update() == ["b"]


def test_nodes_that_were_silent_while_the_database_was_gone_are_not_lost() -> None:
    known = Directory()
    known.update(b=0, c=0)
    # All of them were, this one included.
    assert known.update(b=12, c=12) == []
    assert known.update(b=1, c=1) == []


async def test_nothing_is_sent_to_a_lost_node_until_it_reports_again() -> None:
    known = Directory()

    async def kind() -> type[Exception]:
        return type(await known.directory.elsewhere("b", "sess_1"))

    # This node has started after the last heartbeat of the other one.
    assert known.update(b=11) == [] and await kind() is SessionElsewhere
    assert known.update(b=14) == ["b"] and await kind() is NodeUnknown
    assert known.update(b=17) == [] and await kind() is NodeUnknown
    known.directory.refresh([record("a", 0), record("b", 1)])
    assert await kind() is SessionElsewhere


def test_what_is_new_does_not_go_to_a_node_that_cannot_be_reached() -> None:
    known = Directory()
    known.update(b=0)
    assert known.directory.choose("echo", None) == "b"
    known.directory.unreachable("b")
    assert known.directory.choose("echo", None) == "a"
    assert known.directory.choose("echo", None, "b") == "a"
    known.clock.now += SILENT
    known.update(b=0)
    assert known.directory.choose("echo", None) == "b"
