"""Sessions of the real claude over a daemon's WebSocket: many of them, loaded and resumed, cancelled, and shared with AAP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.gateway.protocols.acp.requirements import load
from tests.model_server.serving import ModelServer
from tests.real.acp.mirror import mirror
from tests.support.acp_client import Client, on_websocket, prompt
from tests.support.daemon import KEY, RunningGateway
from tests.support.requests import create_session, get_history, get_session, send_turn, wait_until_idle

Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with mirror() as server:
        yield server


@pytest.fixture
async def connect(portico: RunningGateway) -> AsyncIterator[Connect]:
    """Makes initialized clients, each with a WebSocket of its own."""
    async with AsyncExitStack() as opened:

        async def start() -> Client:
            client = await opened.enter_async_context(on_websocket(portico.url, "claude", KEY))
            await client.initialize()
            return client

        yield start


def calls(client: Client, since: int = 0) -> list[tuple[str, str, str]]:
    """The ends of calls: id, status and output."""
    updates = [u for u in client.updates(since=since) if u["sessionUpdate"] == "tool_call_update"]
    # Others have the input, while the model writes it.
    ended = [u for u in updates if u.get("status") in ("completed", "failed")]
    return [(u["toolCallId"], u["status"], u["content"][0]["content"]["text"]) for u in ended]


def allow(params: dict[str, Any]) -> str:
    return "allow_once"


async def test_load_replays_the_history_and_resume_does_not(connect: Connect) -> None:
    """Text, a call, and the output of a cancelled prompt."""
    first = await connect()
    first.choose = allow
    session = await first.new()
    await first.prompt(session, "hello")
    await first.prompt(session, "do the work")
    slow = await first.begin("session/prompt", prompt(session, "slow"))
    await first.until(lambda _: first.text().count("word") > 3)
    await first.notify("session/cancel", {"sessionId": session})
    assert (await asyncio.wait_for(slow, 30))["stopReason"] == "cancelled"

    second = await connect()
    answer = await second.request("session/load", load(session))
    assert second.received[-1].get("result") == answer
    assert second.text() == first.text()
    assert second.text(kind="user_message_chunk") == "hellodo the workslow"
    [done] = calls(first)
    assert done[1:] == ("completed", "worked")
    assert calls(second) == [done]

    third = await connect()
    await third.request("session/resume", load(session))
    assert third.updates() == []
    # The session continues; the cancelled prompt has no further output.
    assert (await third.prompt(session, "and on"))["stopReason"] == "end_turn"
    assert third.text() == "and on"
    await first.until(lambda _: first.text().endswith("and on"))
    await second.until(lambda _: second.text().endswith("and on"))
    assert first.text() == second.text()


async def test_a_hundred_sessions_over_one_websocket(connect: Connect, model: ModelServer) -> None:
    """A session has a CLI from its first prompt on; the others are database rows only."""
    client = await connect()
    sessions = [await client.new() for _ in range(100)]
    assert len(set(sessions)) == 100
    some = [sessions[n] for n in (0, 33, 66, 99)]
    answers = await asyncio.gather(*(client.prompt(session, f"I am {session}") for session in some))
    assert {answer["stopReason"] for answer in answers} == {"end_turn"}
    assert {session: client.text(session) for session in sessions if client.text(session)} == {s: f"I am {s}" for s in some}
    assert len(model.bodies("mirror")) == len(some)
    listed, page = [], await client.request("session/list")
    while True:
        listed += [found["sessionId"] for found in page["sessions"]]
        if page.get("nextCursor") is None:
            break
        page = await client.request("session/list", {"cursor": page["nextCursor"]})
    assert listed == sessions[::-1]


async def test_a_session_is_continued_over_aap_and_again_over_acp(
    connect: Connect, portico: RunningGateway, model: ModelServer
) -> None:
    client = await connect()
    session = await client.new()
    await client.prompt(session, "over ACP")
    answer = await send_turn(portico.client, session, "over AAP")
    assert answer["messages"][-1]["content"] == "over AAP"
    await client.until(lambda _: client.text(session) == "over ACPover AAP")
    assert client.text(session, "user_message_chunk") == "over AAP"
    await client.prompt(session, "and back")
    assert [m["content"] for m in await get_history(portico.client, session)] == [
        "over ACP", "over ACP", "over AAP", "over AAP", "and back", "and back",
    ]  # fmt: skip
    # The model receives one conversation.
    given = str(model.bodies("mirror")[-1]["messages"])
    assert given.index("over ACP") < given.index("over AAP") < given.index("and back")


@pytest.mark.parametrize("granted", [True, False])
async def test_an_acp_permission_request_is_answered_over_aap(connect: Connect, portico: RunningGateway, granted: bool) -> None:
    client = await connect()
    session = await client.new()
    answer = await client.begin("session/prompt", prompt(session, "do the work"))
    question = await client.next_permission_request()
    call = question["params"]["toolCall"]["toolCallId"]
    assert (await get_session(portico.client, session))["state"] == "waiting"
    await send_turn(portico.client, session, {"role": "tool_permission", "toolCallId": call, "granted": granted})
    assert (await asyncio.wait_for(answer, 60))["stopReason"] == "end_turn"
    assert [(found, status) for found, status, _ in calls(client)] == [(call, "completed" if granted else "failed")]
    assert client.text(session) == "It is done."
    # The request is cancelled; a late response has no effect.
    assert [m["params"] for m in client.received if m.get("method") == "$/cancel_request"] == [{"requestId": question["id"]}]
    await client.answer(question, "reject_once" if granted else "allow_once")
    assert (await client.prompt(session, "next"))["stopReason"] == "end_turn"


async def test_an_aap_permission_request_is_answered_over_acp(connect: Connect, portico: RunningGateway) -> None:
    first = await create_session(portico.client, "claude", "do the work", grants=[{"name": "Bash", "trust": False}])
    assert first["stopReason"] == "tool_use"
    client = await connect()
    client.choose = allow
    await client.request("session/load", load(first["sessionId"]))
    await client.until(lambda _: client.text().endswith("It is done."))
    assert [(status, output) for _, status, output in calls(client)] == [("completed", "worked")]
    found = await wait_until_idle(portico.client, first["sessionId"])
    assert found["history"]["full"][-1]["content"] == "It is done."
