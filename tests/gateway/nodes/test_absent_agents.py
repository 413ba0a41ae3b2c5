"""Sessions whose agent only one node has, at the other nodes while that one is drained or does not run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cluster import node_directory
from gateway.errors import StoreUnavailable
from gateway.sessions.session import Session
from tests.gateway.nodes.agents_by_node import AgentsByNode, run_agents_by_node
from tests.support.requests import create_session, send_turn, user_message
from tests.support.waiting import wait_until

V3 = "/aap/v3/sessions"
OTHERS = ("one", "three")


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[AgentsByNode]:
    """Only `two` has the agents `other` and `asking`."""
    (scenes := tmp_path / "scenes").mkdir()
    own = {"other": {"driver": "echo"}, "asking": {"driver": "script", "cwd": str(scenes)}}
    agents: dict[str, dict[str, Any]] = {"one": {}, "two": own, "three": {}}
    async with run_agents_by_node(tmp_path, agents) as running:
        yield running


async def take_away(nodes: AgentsByNode, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drain the node `two`, or let it be dead for the others, which have taken its leases over, or be dead for long."""
    await nodes.release("two")
    if how == "drained":
        await nodes.nodes["one"].gateway.store.nodes.drain(nodes.node("two").id)
        return await nodes.beat()
    for name in OTHERS:
        directory = nodes.node(name).directory
        lives = directory.lives
        monkeypatch.setattr(directory, "lives", lambda node, lives=lives: node != nodes.node("two").id and lives(node))
    if how == "gone":
        monkeypatch.setattr(node_directory, "RETURNS_WITHIN", -1.0)


async def read(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    response = await client.get(path)
    assert response.status_code == 200, (path, response.text)
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize("how", ["drained", "dead", "gone"])
async def test_such_a_session_is_read_followed_and_deleted_and_what_needs_its_agent_is_refused(
    nodes: AgentsByNode, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = nodes.nodes["one"].client
    session = (await create_session(client, "other", "hello"))["sessionId"]
    assert await nodes.place_of(session) == "two"
    await take_away(nodes, how, monkeypatch)
    if how != "gone":
        for name in OTHERS:
            turn = await nodes.nodes[name].client.post(f"/session/{session}", json={"messages": [user_message("again")]})
            assert (turn.status_code, turn.headers.get("Retry-After")) == (503, "10"), turn.text
            assert "agent 'other' is at other nodes only" in turn.text
        assert await nodes.place_of(session) is None
    shown = await read(client, f"{V3}/{session}")
    assert shown["sessionId"] == session and shown["agent"]["name"] == "other", shown
    assert session in (await client.get(V3)).text
    history = (await read(client, f"{V3}/{session}/history?type=full"))["history"]["full"]
    messages = (await read(client, f"{V3}/{session}/messages"))["messages"]
    assert len(history) == len(messages) == 2
    assert "session_end" in (await client.get(f"{V3}/{session}/log")).text
    assert "hello" in (await client.get(f"{V3}/{session}/frames?turn=1&protocol=aap-delta")).text
    followed = client.stream("GET", f"{V3}/{session}/events", params={"after": "0"})
    async with asyncio.timeout(60), followed as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line == "event: turn_stop":
                break
        # It keeps its node while it is followed there.
        await nodes.node("one").daemon.tidy()
        assert nodes.node("one").leases.get(session) is not None
    deleted = await client.delete(f"{V3}/{session}")
    assert deleted.is_success, deleted.text
    for name in OTHERS:
        assert (await nodes.nodes[name].client.get(f"{V3}/{session}")).status_code == 404
        assert session not in (await nodes.nodes[name].client.get(V3)).text
    assert (await client.delete(f"{V3}/{session}")).status_code == 404
    assert nodes.node("one").leases.get(session) is None


async def test_a_deletion_that_fails_lets_the_agent_come_back(nodes: AgentsByNode, monkeypatch: pytest.MonkeyPatch) -> None:
    session = (await create_session(nodes.nodes["one"].client, "other", "hello"))["sessionId"]
    await take_away(nodes, "drained", monkeypatch)
    one = nodes.nodes["one"]

    async def fail(deleted: Session) -> None:
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as failing:
        failing.setattr(Session, "delete_stored", fail)
        assert (await one.client.delete(f"{V3}/{session}")).status_code == 503
    assert await nodes.place_of(session) is None
    await nodes.nodes["two"].gateway.store.nodes.start(nodes.node("two").daemon.report(), 86400.0)
    nodes.node("two").directory.draining = False
    await nodes.beat()
    assert (await send_turn(one.client, session, "again"))["messages"][-1]["content"] == "again"


async def test_a_session_that_waits_for_its_client_is_shown_and_deleted(
    nodes: AgentsByNode, write_scenario: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, call = nodes.nodes["one"].client, {"id": "sky", "name": "weather", "ask": True, "result": "sun"}
    scenario = write_scenario([{"tool_call": call}, {"text": "over"}], [{"remember": True}])
    session = (await create_session(one, "asking", "work", options={"scenario": scenario}))["sessionId"]
    await take_away(nodes, "dead", monkeypatch)
    shown = (await read(one, f"{V3}/{session}"))["x-portico"]
    assert (shown["state"], [pending["toolCallId"] for pending in shown["pendingCalls"]]) == ("waiting", ["sky"])
    # Its folder is on another machine.
    assert shown["cwd"] is None
    assert (await one.delete(f"{V3}/{session}")).is_success


async def test_a_response_of_such_a_session_is_shown_and_followed_by_another_agent(
    nodes: AgentsByNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = nodes.nodes["one"].client
    made = await one.post("/v1/responses", json={"model": "other", "input": "hello"})
    path = f"/v1/responses/{made.json()['id']}"

    async def end_is_stored() -> bool:
        record = await nodes.nodes["one"].gateway.store.responses.get(made.json()["id"])
        return record is not None and record.last_seq is not None

    # It is stored after the answer, for which a node acquires a lease again that it has released.
    await wait_until(end_is_stored)
    await take_away(nodes, "dead", monkeypatch)
    assert (await read(one, path))["output"] == made.json()["output"]
    assert [item["content"][0]["text"] for item in (await read(one, f"{path}/input_items"))["data"]] == ["hello"]
    body = {"model": "echo", "input": "on", "previous_response_id": made.json()["id"]}
    assert (await one.post("/v1/responses", json=body)).status_code == 200
    refused = await one.post("/v1/responses", json={**body, "model": "other"})
    assert refused.status_code == 503, refused.text
