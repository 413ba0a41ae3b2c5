"""The node that serves an ACP connection: of its first session, and of those that are opened on it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.gateway.nodes.agents_by_node import AgentsByNode, run_agents_by_node
from tests.support.acp_client import Client, RpcFailed, load, on_http, on_websocket
from tests.support.daemon import KEY

Transport = Callable[[str, str, str], AbstractAsyncContextManager[Client]]
both_transports = pytest.mark.parametrize("transport", [on_websocket, on_http])


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[AgentsByNode]:
    """The nodes `one` and `two`, of which `two` is the least loaded."""
    async with run_agents_by_node(tmp_path, {"one": {}, "two": {}}) as running:
        running.least_loaded = "two"
        yield running


async def created_at(nodes: AgentsByNode, name: str) -> str:
    """A session of a node, created by another client."""
    nodes.least_loaded = name
    async with on_websocket(nodes.nodes[name].url, "echo", KEY) as client:
        await client.initialize()
        session = await client.new()
        await client.prompt(session, "before ")
    nodes.least_loaded = "two"
    return session


@both_transports
async def test_a_connection_goes_to_the_least_loaded_node_and_stays_there(nodes: AgentsByNode, transport: Transport) -> None:
    async with transport(nodes.nodes["one"].url, "echo", KEY) as client:
        await client.initialize()
        first = await client.new()
        nodes.least_loaded = "one"
        second = await client.new()
        for session in (first, second):
            assert (await client.prompt(session, "hello"))["stopReason"] == "end_turn"
            assert await nodes.place_of(session) == "two"
        assert not client.invalid


@both_transports
async def test_what_no_node_has_is_opened_at_the_node_of_the_connection(nodes: AgentsByNode, transport: Transport) -> None:
    unused, deleted = await created_at(nodes, "two"), await created_at(nodes, "two")
    async with transport(nodes.nodes["one"].url, "echo", KEY) as client:
        await client.initialize()
        nodes.least_loaded = "one"
        own = await client.new()
        nodes.least_loaded = "two"
        with pytest.raises(RpcFailed, match=r"is on another node .* open another connection for it"):
            await client.request("session/load", load(unused))
        # This node remembers where it was.
        await nodes.release("two")
        await client.request("session/load", load(unused))
        await client.prompt(unused, "again")
        assert client.text(unused) == "before again"
        await client.request("session/delete", {"sessionId": deleted})
        new = await client.new()
        assert [await nodes.place_of(session) for session in (own, unused, new, deleted)] == ["one", "one", "one", None]
        assert not client.invalid


async def test_a_drained_node_opens_no_further_sessions_of_a_connection(nodes: AgentsByNode) -> None:
    unused = await created_at(nodes, "two")
    await nodes.release("two")
    one = nodes.nodes["one"]
    async with on_websocket(one.url, "echo", KEY) as client:
        await client.initialize()
        nodes.least_loaded = "one"
        await client.new()
        await one.gateway.store.nodes.drain(nodes.node("one").id)
        await nodes.beat()
        with pytest.raises(RpcFailed, match="this one is drained, or has not its folder; open another connection for it"):
            await client.new()
        with pytest.raises(RpcFailed, match=r"is on another node .* open another connection for it"):
            await client.request("session/load", load(unused))
        async with on_websocket(one.url, "echo", KEY) as second:
            await second.initialize()
            await second.request("session/load", load(unused))
            assert (await second.prompt(unused, "again"))["stopReason"] == "end_turn"
            assert await nodes.place_of(unused) == "two"
            assert await nodes.place_of(await second.new()) == "two"


async def test_a_session_is_not_created_by_a_node_that_is_drained_by_now(
    nodes: AgentsByNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of the client does not know it yet, and looks again once it is refused."""
    one, two = nodes.node("one").directory, nodes.node("two")
    look_again = one.look_again

    async def drained() -> None:
        await nodes.nodes["two"].gateway.store.nodes.drain(two.id)
        await look_again()

    two.directory.draining = True
    monkeypatch.setattr(one, "look_again", drained)
    async with on_websocket(nodes.nodes["one"].url, "echo", KEY) as client:
        await client.initialize()
        assert one.choose("echo", None) == two.id
        session = await client.new()
        assert (await client.prompt(session, "hello"))["stopReason"] == "end_turn"
        assert await nodes.place_of(session) == "one"


async def test_a_session_leaves_a_drained_node_with_its_connection(nodes: AgentsByNode) -> None:
    one = nodes.nodes["one"]
    async with on_websocket(one.url, "echo", KEY) as client:
        await client.initialize()
        nodes.least_loaded = "one"
        session, other = await client.new(), await client.new()
        await client.prompt(session, "before ")
        await one.gateway.store.nodes.drain(nodes.node("one").id)
        await nodes.beat()
        await one.gateway.sessions.release_unused(0.0)
        for opened in (session, other):
            await client.request("session/resume", load(opened))
            await client.prompt(opened, "again")
            assert await nodes.place_of(opened) == "two"
        assert client.text(session) == "before again"


async def test_first_requests_at_once_have_one_node(nodes: AgentsByNode) -> None:
    """The loads change with each of them."""
    there = await created_at(nodes, "two")
    nodes.least_loaded = "one"
    async with on_websocket(nodes.nodes["one"].url, "echo", KEY) as client:
        await client.initialize()
        new, loaded = await asyncio.gather(client.new(), client.request("session/load", load(there)), return_exceptions=True)
        assert isinstance(new, str) and isinstance(loaded, RpcFailed)
        assert await nodes.place_of(new) == "one"
        assert (await client.prompt(new, "hello"))["stopReason"] == "end_turn"
