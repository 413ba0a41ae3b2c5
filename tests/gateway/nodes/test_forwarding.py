"""Requests for sessions of another node: forwarded with the caller, answered as by that node, streamed as they come."""

from __future__ import annotations

from tests.gateway.nodes.cluster import Cluster
from tests.gateway.requests import create_session, execute, send_turn


async def test_a_turn_of_a_session_of_another_node_is_answered(cluster: Cluster) -> None:
    created = await create_session(cluster.a.client, "echo")
    session = created["sessionId"]
    assert cluster.placement.sessions == {session: "b"}
    answer = await send_turn(cluster.a.client, session, "again")
    assert answer["messages"][0]["content"] == "again"
    events = await execute(cluster.a.client, "a task", "echo")
    assert events[-1]["kind"] == "session_end"
