"""Agents that one node of a cluster offers are listed and used at all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.node_directory import NodeDirectory
from gateway.cluster.shared_agents import SharedAgents
from gateway.security.redaction import HIDDEN
from tests.gateway.nodes.agents_by_node import run_agents_by_node
from tests.support.daemon import RunningGateway
from tests.support.requests import create_session, execute, get_session, send_turn

SECRET = "a-secret-default-0123456789"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[RunningGateway]]:
    """Two nodes, of which the second one has the agents `other` and `secretive` too."""
    agents: dict[str, Any] = {
        "other": {"driver": "echo", "title": "Other", "description": "Only here"},
        "secretive": {"driver": "script", "options": {"token": SECRET}},
    }
    async with run_agents_by_node(tmp_path, {"one": {}, "two": agents}) as running:
        yield [*running.nodes.values()]


async def meta(node: RunningGateway, path: str = "/meta") -> dict[str, Any]:
    return {agent["name"]: agent for agent in (await node.client.get(path)).json()["agents"]}


async def test_all_nodes_list_the_agents_of_each_and_use_them(nodes: list[RunningGateway]) -> None:
    first, second = nodes
    for path in ("/meta", "/aap/v2/meta", "/aap/v3/meta"):
        assert (await meta(first, path))["other"] == (await meta(second, path))["other"]
    models = [{model["id"] for model in (await one.client.get("/v1/models")).json()["data"]} for one in nodes]
    assert models[0] == models[1] and "other" in models[0]
    session = (await create_session(first.client, "other", "hello"))["sessionId"]
    assert (await send_turn(first.client, session, "again"))["messages"][-1]["content"] == "again"
    assert (await get_session(first.client, session))["agent"]["name"] == "other"
    assert session in (await first.client.get("/sessions")).text
    assert (await execute(first.client, "a task", "other"))[-1]["kind"] == "session_end"
    body = {"model": "other", "messages": [{"role": "user", "content": "hi"}]}
    answer = await first.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "hi"
    unknown = await first.client.post("/v1/chat/completions", json={**body, "model": "nobody"})
    assert unknown.status_code == 404


async def test_agents_of_a_node_that_takes_no_new_work_are_not_listed(nodes: list[RunningGateway]) -> None:
    first, second = nodes
    assert first.gateway.node is not None and second.gateway.node is not None
    assert "other" in await meta(first)
    await first.gateway.store.nodes.drain(second.gateway.node.id)
    await first.gateway.node.beat()
    assert "other" not in await meta(first) and "echo" in await meta(first)


async def test_no_secret_of_an_agent_is_stored_for_the_other_nodes(nodes: list[RunningGateway]) -> None:
    first, second = nodes
    assert second.gateway.node is not None
    name = f"agents:{second.gateway.node.id}"
    stored = (await first.gateway.store.shared.values.some([name]))[name]
    assert "secretive" in stored and SECRET not in stored
    [token] = [option for option in (await meta(first))["secretive"]["options"] if option["name"] == "token"]
    assert token["type"] == "secret" and token["default"] == HIDDEN


async def test_the_lists_of_nodes_that_are_gone_are_removed_and_no_others(nodes: list[RunningGateway]) -> None:
    values = nodes[0].gateway.store.shared.values
    names = {f"agents:{one.gateway.node.id}" for one in nodes if one.gateway.node is not None}
    await values.set("agents:gone", "[]")
    assert nodes[0].gateway.node is not None
    # As at a start, before this node knows the others.
    await SharedAgents(values, NodeDirectory(nodes[0].gateway.node.daemon.report, 10.0)).publish("[]")
    assert (await values.some([*names, "agents:gone"])).keys() == names
