"""Conversations over the model APIs that go on in a new session, at each node of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.contract.messages import text_of
from drivers.runtime.clock import SYSTEM_CLOCK
from gateway.cluster import sessions
from gateway.security.authentication import ADMINISTRATOR
from tests.gateway.nodes.agents_by_node import AgentsByNode, run_agents_by_node
from tests.support.manual_clock import ManualClock

ECHO = {"driver": "echo"}


@pytest.fixture
async def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AgentsByNode]:
    """Only `one` has the agents `first` and `slow`, only `two` has `second`, and only `one` lacks `both`.

    For a test that has `clock`, they have that clock.
    """
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else SYSTEM_CLOCK
    slow = {"driver": "script", "cwd": str(tmp_path), "options": {"scenario": "slow.json"}}
    (tmp_path / "slow.json").write_text('{"turns": [{"steps": [{"wait_for_file": "go"}, {"text": "over"}]}]}')
    agents: dict[str, dict[str, Any]] = {
        "one": {"first": ECHO, "slow": slow},
        "two": {"second": ECHO, "both": ECHO},
        "three": {"both": ECHO},
    }
    async with run_agents_by_node(tmp_path, agents, clock) as running:
        yield running


async def respond(client: httpx.AsyncClient, text: Any, model: str = "echo", **fields: Any) -> httpx.Response:
    response = await client.post("/v1/responses", json={"model": model, "input": text, **fields})
    assert response.status_code == 200, response.text
    return response


async def chat(client: httpx.AsyncClient, *texts: str, model: str = "echo", session: str | None = None) -> httpx.Response:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    headers = {"X-Portico-Session": session} if session else {}
    return await client.post("/v1/chat/completions", json={"model": model, "messages": messages}, headers=headers)


async def history(nodes: AgentsByNode, response: httpx.Response) -> list[str]:
    """The texts of the messages of a response's session."""
    session = await nodes.nodes["two"].gateway.sessions.get_history(ADMINISTRATOR, session_of(response))
    return [text_of(message.content) async for message in session.history.messages()]


def session_of(response: httpx.Response) -> str:
    found: str = response.headers["X-Portico-Session"]
    return found


async def response_is_continued_anew_at_another_node(nodes: AgentsByNode) -> None:
    nodes.least_loaded = "two"
    first = await respond(nodes.nodes["one"].client, "hello")
    assert await nodes.place_of(session_of(first)) == "two"
    nodes.least_loaded, previous, client = "three", first.json()["id"], nodes.nodes["two"].client
    continued = await respond(client, "on", previous_response_id=previous)
    assert session_of(continued) == session_of(first)
    branch = await respond(client, "other", previous_response_id=previous)
    instructed = await respond(client, "brief", previous_response_id=previous, instructions="Be brief.")
    assert len({session_of(one) for one in (first, branch, instructed)}) == 3
    assert await history(nodes, branch) == ["hello", "hello", "other", "other"]
    assert (await history(nodes, instructed))[-4:] == ["hello", "hello", "brief", "brief"]


async def conversation_is_continued_by_any_node(nodes: AgentsByNode) -> None:
    nodes.least_loaded = "two"
    first = await chat(nodes.nodes["one"].client, "from two", model="both")
    assert await nodes.place_of(session_of(first)) == "two"
    # The node stores which session has answered the conversation after the answer.
    await nodes.nodes["two"].gateway.conversations.close()
    nodes.least_loaded = "three"
    continued = await chat(nodes.nodes["three"].client, "from two", "from two", "on", model="both")
    assert continued.status_code == 200 and session_of(continued) == session_of(first)


async def response_is_continued_with_an_agent_of_another_node(nodes: AgentsByNode, then: str = "second") -> None:
    nodes.least_loaded = "one"
    first = await respond(nodes.nodes["three"].client, "hello", "first")
    nodes.least_loaded = "three"
    second = await respond(nodes.nodes["two"].client, "on", then, previous_response_id=first.json()["id"])
    assert second.json()["output"][0]["content"][0]["text"] == "on"
    assert await history(nodes, second) == ["hello", "hello", "on", "on"]
    assert await nodes.place_of(session_of(second)) == ("two" if then == "second" else "three")


async def edited_conversation_of_a_named_session_is_a_new_one(nodes: AgentsByNode) -> None:
    nodes.least_loaded = "two"
    first = await chat(nodes.nodes["one"].client, "hello")
    nodes.least_loaded, client = "three", nodes.nodes["two"].client
    same = await chat(client, "hello", "hello", "on", session=session_of(first))
    assert same.status_code == 200 and session_of(same) == session_of(first)
    edited = await chat(client, "hello", "edited", "more", session=session_of(first))
    assert edited.status_code == 200, edited.text
    assert session_of(edited) != session_of(first)
    assert await history(nodes, edited) == ["hello", "edited", "more", "more"]


async def named_session_is_found_where_several_nodes_have_its_agent(nodes: AgentsByNode) -> None:
    nodes.least_loaded = "three"
    client = nodes.nodes["two"].client
    first = session_of(await chat(nodes.nodes["one"].client, "hello", model="both"))
    assert await nodes.place_of(first) == "three"
    nodes.least_loaded = "two"
    same = await chat(client, "hello", "hello", "on", model="both", session=first)
    assert same.status_code == 200, same.text
    assert session_of(same) == first
    wrong = await chat(client, "hello", "hello", "on", model="second", session=first)
    assert wrong.status_code == 400, wrong.text
    assert f"session {first!r} is of agent 'both'" in wrong.text
    unknown = await chat(client, "hello", "hello", "on", model="nobody", session=first)
    assert unknown.status_code == 404, unknown.text


async def items_of_sessions_at_several_nodes_are_given_by_reference(nodes: AgentsByNode) -> None:
    items: list[Any] = []
    for name, text in (("two", "hello"), ("three", "more")):
        nodes.least_loaded = name
        made = await respond(nodes.nodes["one"].client, text)
        assert await nodes.place_of(session_of(made)) == name
        items += [{"role": "user", "content": text}, {"type": "item_reference", "id": made.json()["output"][0]["id"]}]
    nodes.least_loaded = "one"
    response = await respond(nodes.nodes["two"].client, [*items, {"role": "user", "content": "on"}])
    assert await history(nodes, response) == ["hello", "hello", "more", "more", "on", "on"]


STORIES: list[Callable[[AgentsByNode], Awaitable[None]]] = [
    response_is_continued_anew_at_another_node,
    response_is_continued_with_an_agent_of_another_node,
    edited_conversation_of_a_named_session_is_a_new_one,
    named_session_is_found_where_several_nodes_have_its_agent,
    items_of_sessions_at_several_nodes_are_given_by_reference,
    partial(response_is_continued_with_an_agent_of_another_node, then="echo"),
    conversation_is_continued_by_any_node,
]


async def test_conversations_go_on_whichever_node_gets_the_request(nodes: AgentsByNode) -> None:
    for story in STORIES:
        await story(nodes)


async def test_an_answer_that_the_store_has_not_yet_is_waited_for(
    nodes: AgentsByNode, clock: ManualClock, tmp_path: Path
) -> None:
    """Its client may have it by then."""
    first = await respond(nodes.nodes["one"].client, "hello", "slow", background=True)
    assert first.json()["status"] != "completed"
    body = {"previous_response_id": first.json()["id"]}
    second = asyncio.create_task(respond(nodes.nodes["two"].client, "on", "second", **body))
    await clock.waited_for(sessions.LOOK_AGAIN)
    (tmp_path / "go").touch()
    answered = await clock.outlast(second, sessions.LOOK_AGAIN)
    assert await history(nodes, answered) == ["hello", "over", "on", "on"]


async def test_an_answer_in_progress_is_not_waited_for_long(nodes: AgentsByNode, clock: ManualClock) -> None:
    first = await respond(nodes.nodes["one"].client, "hello", "slow", background=True)
    body = {"model": "second", "input": "on", "previous_response_id": first.json()["id"]}
    asking = asyncio.create_task(nodes.nodes["two"].client.post("/v1/responses", json=body))
    refused = await clock.expire_until(asking, sessions.LOOK_AGAIN)
    assert refused.status_code == 409 and "is in progress" in refused.text
