"""Two nodes over one PostgreSQL: each of them takes any request, and a node that stops gives its sessions to the other one."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.nodes.agents_by_node import run_agents_by_node
from tests.support.acp_client import load, on_websocket
from tests.support.daemon import KEY
from tests.support.requests import create_session, execute, send_turn


async def test_sessions_of_one_node_are_used_at_both_and_leave_it_when_it_stops(tmp_path: Path) -> None:
    async with run_agents_by_node(tmp_path, {"one": {}, "two": {}}) as nodes:
        one, two = nodes.nodes.values()
        sessions = [(await create_session(one.client, "echo"))["sessionId"] for _ in range(4)]
        # The least loaded node gets the next one, whichever is asked.
        assert sorted([await nodes.place_of(session) for session in sessions], key=str) == ["one", "one", "two", "two"]
        for running in (one, two):
            for session in sessions:
                assert (await send_turn(running.client, session, "again"))["messages"][-1]["content"] == "again"
        assert [len(running.gateway.sessions.held) for running in (one, two)] == [2, 2]
        assert (await execute(two.client, "a task", "echo"))[-1]["kind"] == "session_end"
        [session, _] = [session for session in sessions if await nodes.place_of(session) == "two"]
        async with on_websocket(one.url, "echo", KEY) as client:
            await client.initialize()
            await client.request("session/load", load(session))
            await client.prompt(session, "before ")
            await nodes.stop("two")
            # The other node has perhaps had no heartbeat since then.
            for _ in range(3):
                await create_session(one.client, "echo")
            assert (await send_turn(one.client, session, "after"))["stopReason"] == "end_turn"
        async with on_websocket(one.url, "echo", KEY) as client:
            await client.initialize()
            await client.request("session/load", load(session))
            assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
            assert "before after" in client.text(session) and "again" in client.text(session)
        assert await nodes.place_of(session) == "one"
