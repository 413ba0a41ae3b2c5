"""Prompts and steering messages over the Agent Client Protocol while a run of their session is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from drivers.contract.messages import UserMessage
from gateway.app import Gateway
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Session, Submission
from tests.gateway.protocols.acp.conftest import ConnectClient, Scripted, WriteScenario, scripted_session
from tests.support.acp_client import Client, RpcFailed, connect, kinds, load, prompt
from tests.support.daemon import RunningGateway
from tests.support.requests import get_session
from tests.support.waiting import wait_until

TURNS: list[Any] = [
    {"when": "^first", "steps": [{"text": "1"}, {"wait_for_file": "go"}, {"text": "!"}]},
    {"when": "^asks", "steps": [{"tool_call": {"name": "shell"}}, {"text": "asked"}]},
    {"when": "^hang", "steps": [{"text": "hangs"}, {"hang": True}]},
    {"steps": [{"text": "[{prompt}]"}]},
]


@pytest.fixture
def release(portico: RunningGateway) -> Callable[[], None]:
    """Lets the first turn of the scenario end."""
    path = portico.gateway.agents.get("script").working_directory(None) / "go"
    return path.touch


class Busy(NamedTuple):
    """A client and its session, whose first prompt is in progress until `release` is called."""

    client: Client
    session: str
    first: asyncio.Future[Any]
    release: Callable[[], None]


@pytest.fixture
async def busy(scripted: Scripted, release: Callable[[], None]) -> Busy:
    client, session = await scripted(*TURNS)
    first = await client.begin("session/prompt", prompt(session, "first"))
    await client.until(lambda _: client.text(session) == "1")
    return Busy(client, session, first, release)


async def stored_session(gateway: Gateway, session: str) -> Session:
    return await gateway.sessions.get(ADMINISTRATOR, session)


async def queued(gateway: Gateway, session: str) -> None:
    """Wait until a message is queued in the session."""
    found = await stored_session(gateway, session)
    await wait_until(lambda: not found.queue.empty)


async def user_texts(gateway: Gateway, session: str) -> list[Any]:
    found = await stored_session(gateway, session)
    return [message.content async for message in found.history.messages() if isinstance(message, UserMessage)]


async def test_prompts_during_a_run_are_held(busy: Busy, portico: RunningGateway) -> None:
    # Prompts during a run are held and run in order.
    client, session, first, release = busy
    others = [await client.begin("session/prompt", prompt(session, text)) for text in ("second", "third")]
    await queued(portico.gateway, session)
    assert not any(answer.done() for answer in (first, *others))
    release()
    for answer in (first, *others):
        assert (await answer)["stopReason"] == "end_turn"
    assert client.text(session) == "1![second][third]"
    # The client has sent these prompts itself.
    assert "user_message_chunk" not in kinds(client.updates(session))
    # Each is answered after the updates of its own run.
    answers = [n for n, message in enumerate(client.received) if message.get("result", {}).get("stopReason")]
    assert [client.text(session, since=n) for n in answers] == ["[second][third]", "[third]", ""]


async def test_prompts_of_two_clients_are_held_and_sent_to_both(busy: Busy, acp: ConnectClient, portico: RunningGateway) -> None:
    client, session, first, release = busy
    other = await acp()
    await other.request("session/resume", load(session))
    second = await other.begin("session/prompt", prompt(session, "other"))
    await queued(portico.gateway, session)
    third = await client.begin("session/prompt", prompt(session, "own"))
    release()
    for answer in (first, second, third):
        assert (await answer)["stopReason"] == "end_turn"
    await other.until(lambda _: "[own]" in other.text())
    assert client.text(session) == "1![other][own]"
    assert client.text(kind="user_message_chunk") == "other"
    assert other.text(kind="user_message_chunk") == "own"


async def test_cancel_cancels_held_prompts_too(busy: Busy, portico: RunningGateway) -> None:
    client, session, first, _ = busy
    held = [await client.begin("session/prompt", prompt(session, text)) for text in ("second", "third")]
    await queued(portico.gateway, session)
    await client.notify("session/cancel", {"sessionId": session})
    later = await client.begin("session/prompt", prompt(session, "later"))
    assert [(await answer)["stopReason"] for answer in (first, *held)] == ["cancelled"] * 3
    # A prompt that was sent after the cancel is not cancelled by it.
    assert (await later)["stopReason"] == "end_turn"
    assert await user_texts(portico.gateway, session) == ["first", "later"]


async def test_cancel_leaves_the_held_prompts_of_other_clients(busy: Busy, acp: ConnectClient, portico: RunningGateway) -> None:
    client, session, first, _ = busy
    other = await acp()
    await other.request("session/resume", load(session))
    held = await other.begin("session/prompt", prompt(session, "other"))
    await queued(portico.gateway, session)
    await client.notify("session/cancel", {"sessionId": session})
    assert (await first)["stopReason"] == "cancelled"
    assert (await held)["stopReason"] == "end_turn"


async def test_cancel_request_of_a_held_prompt_leaves_the_run(busy: Busy, portico: RunningGateway) -> None:
    client, session, first, release = busy
    held = await client.begin("session/prompt", prompt(session, "second"), request_id="held")
    await queued(portico.gateway, session)
    await client.notify("$/cancel_request", {"requestId": "held"})
    assert (await held)["stopReason"] == "cancelled"
    assert not first.done()
    release()
    assert (await first)["stopReason"] == "end_turn"
    assert await user_texts(portico.gateway, session) == ["first"]


async def test_close_of_a_session_cancels_its_held_prompts(busy: Busy, portico: RunningGateway) -> None:
    client, session, first, _ = busy
    held = await client.begin("session/prompt", prompt(session, "second"))
    await queued(portico.gateway, session)
    await client.request("session/close", {"sessionId": session})
    assert [answer.result()["stopReason"] for answer in (first, held)] == ["cancelled", "cancelled"]


async def test_deletion_of_a_session_refuses_its_held_prompts(busy: Busy, portico: RunningGateway) -> None:
    client, session, first, _ = busy
    held = await client.begin("session/prompt", prompt(session, "second"))
    await queued(portico.gateway, session)
    assert (await portico.client.delete(f"/session/{session}")).status_code == 204
    with pytest.raises(RpcFailed, match="deleted"):
        await first
    with pytest.raises(RpcFailed, match="deleted") as refused:
        await held
    assert refused.value.code == -32002


async def test_held_prompts_of_a_client_that_disconnects_do_not_run(
    portico: RunningGateway, write_scenario: WriteScenario, release: Callable[[], None]
) -> None:
    client, connection = connect(portico.gateway)
    await client.initialize()
    session = await scripted_session(client, portico.gateway, write_scenario(*TURNS))
    await client.begin("session/prompt", prompt(session, "first"))
    await client.until(lambda _: client.text(session) == "1")
    await client.begin("session/prompt", prompt(session, "second"))
    await queued(portico.gateway, session)
    # A held prompt does not delay the end of the input.
    async with asyncio.timeout(1):
        await connection.drain(30)
    await connection.close()
    found = await stored_session(portico.gateway, session)
    assert found.queue.empty and found.busy
    release()
    await found.submit(Submission(message=UserMessage(content="after"), when_busy="queue"))
    assert await user_texts(portico.gateway, session) == ["first", "after"]


async def test_many_held_prompts_do_not_keep_the_connection_from_reading(
    busy: Busy, acp: ConnectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.protocols.acp.connection.MAX_CONCURRENT_MESSAGES", 2)
    client, session, first, _ = busy
    held = [await client.begin("session/prompt", prompt(session, f"{n}")) for n in range(4)]
    await client.notify("session/cancel", {"sessionId": session})
    assert {(await answer)["stopReason"] for answer in (first, *held)} == {"cancelled"}


# -- steering -----------------------------------------------------------------------------------------------------------------

STEERED: list[Any] = [
    {"when": "^first", "steps": [{"text": "1"}, {"wait_for_file": "go"}, {"text": "{steered}"}]},
    {"when": "^asks", "steps": [{"tool_call": {"name": "shell"}}, {"text": "asked"}]},
    {"steps": [{"text": "[{prompt}]"}]},
]


def steering(session: str, text: str, **options: Any) -> dict[str, Any]:
    return {**prompt(session, text), **({"_meta": {"steering": options}} if options else {})}


async def test_steering_is_declared_where_the_agent_supports_it(acp: ConnectClient, portico: RunningGateway) -> None:
    client, connection = connect(portico.gateway, "script")
    declared = await client.initialize()
    assert declared["_meta"] == {"steering": {"supported": True}}
    assert declared["agentCapabilities"]["_meta"] == {"claudeCode": {"promptQueueing": True}}
    await connection.close()
    client, connection = connect(portico.gateway, "echo")
    declared = await client.initialize()
    assert "_meta" not in declared
    session = await client.new()
    with pytest.raises(RpcFailed, match="takes no messages while it works") as refused:
        await client.request("_session/steering", steering(session, "x"))
    assert refused.value.code == -32601
    await connection.close()


async def test_steering_message_is_sent_to_the_run_at_work(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario, release: Callable[[], None]
) -> None:
    client, other = await acp(), await acp()
    session = await scripted_session(client, portico.gateway, write_scenario(*STEERED))
    await other.request("session/resume", load(session))
    answer = await client.begin("session/prompt", prompt(session, "first"))
    await client.until(lambda _: client.text(session) == "1")
    assert await client.request("_session/steering", steering(session, "left!")) == {"outcome": "injected"}
    release()
    assert (await answer)["stopReason"] == "end_turn"
    assert client.text(session) == "1left!"
    # Other clients receive it; the client that has sent it does not.
    await other.until(lambda _: "left!" in other.text())
    assert other.text(kind="user_message_chunk") == "firstleft!"
    assert client.text(kind="user_message_chunk") == ""
    assert await user_texts(portico.gateway, session) == ["first", "left!"]


@pytest.mark.parametrize("waits", [False, True])
async def test_steering_message_without_a_run_at_work(
    scripted: Scripted, portico: RunningGateway, release: Callable[[], None], waits: bool
) -> None:
    client, session = await scripted(*STEERED)
    if waits:
        first = await client.begin("session/prompt", prompt(session, "asks"))
        question = await client.next_permission_request()
    answer = await client.request("_session/steering", steering(session, "x", idleBehavior="promptRequired"))
    assert answer == {"outcome": "promptRequired", "reason": "noRunningTurn"}
    assert await client.request("_session/steering", steering(session, "again")) == {"outcome": "startedNewTurn"}
    if waits:
        await client.answer(question, "allow_once")
        assert (await first)["stopReason"] == "end_turn"
    await client.until(lambda _: client.text(session) == "asked[again]" if waits else client.text(session) == "[again]")
    with pytest.raises(RpcFailed, match="idleBehavior"):
        await client.request("_session/steering", steering(session, "x", idleBehavior="other"))
    with pytest.raises(RpcFailed, match="empty"):
        await client.request("_session/steering", steering(session, " "))
    assert (await get_session(portico.client, session))["sessionId"] == session
