"""A turn that is cancelled, or whose session is deleted, while its agent starts: the agent is ended and never gets the prompt."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.errors import NotFound, ShuttingDown
from gateway.runs.idempotency import IdempotencyKey
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Submission
from tests.gateway.protocols.acp.conftest import acp as acp
from tests.gateway.protocols.acp.conftest import scripted_session
from tests.gateway.sessions.test_submit import ANSWER, HELLO, create_waiting_session, suspend
from tests.support.acp_client import prompt
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.faulty_store import run_faulty_gateway
from tests.support.requests import (
    create_session,
    expect_error,
    get_history,
    is_alive,
    read_pid,
    send_turn,
    session_body,
    user_message,
)
from tests.support.sse import parse_events
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
Open = Callable[..., Awaitable[Any]]
STARTS = [{"spawn": {"seconds": 300, "pid_file": "starting", "new_session": True}}, {"wait_for_file": "started"}]
"""What an agent does before a prompt: it writes the id of a process that it has started, and waits for a file."""
GIVEN = [{"write_file": {"path": "given", "text": "x"}}]


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """The working folder of the agents."""
    return tmp_path / "scenes"


@pytest.fixture
def slow(write_scenario: WriteScenario, scenes: Path) -> str:
    """A scenario whose agent goes on starting, and writes the file `given` when it has the prompt."""
    name = write_scenario(GIVEN, name="slow.json")
    (scenes / name).write_text(json.dumps({"start": STARTS, "turns": [{"steps": GIVEN}]}))
    return name


async def idle_session(portico: RunningGateway, write_scenario: WriteScenario) -> str:
    """Create a session after its first turn."""
    name = write_scenario([{"text": "one"}], [{"remember": True}])
    return str((await create_session(portico.client, "script", "first", options={"scenario": name}))["sessionId"])


def slow_turn(slow: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a turn whose agent starts slowly."""
    return {"messages": [user_message("second")], "agent": {"options": {"scenario": slow}}, **fields}


async def post_cancel(client: httpx.AsyncClient, session: str) -> None:
    """Cancel the turn, whose agent goes on starting."""
    answer = await client.post(f"/session/{session}/cancel")
    assert answer.json() == {"sessionId": session, "cancelled": True, "state": "idle"}


async def assert_never_given(scenes: Path) -> None:
    """Assert that the agent has been ended, with what it has started, before it had the prompt."""
    pid = await read_pid(scenes / "starting")
    await wait_until(lambda: not is_alive(pid))
    assert not (scenes / "given").exists()


@pytest.mark.parametrize("mode", ["none", "delta"])
async def test_cancelled_start_ends_the_turn_as_a_cancelled_run(
    portico: RunningGateway, write_scenario: WriteScenario, slow: str, scenes: Path, mode: str
) -> None:
    session = await idle_session(portico, write_scenario)
    headers = {"Idempotency-Key": "second"}

    def post() -> Coroutine[Any, Any, httpx.Response]:
        return portico.client.post(f"/session/{session}", json=slow_turn(slow, stream=mode), headers=headers)

    turn = asyncio.create_task(post())
    await read_pid(scenes / "starting")
    await post_cancel(portico.client, session)
    # It is the same when it is repeated under its key.
    for answer in (await turn, await post()):
        if mode == "none":
            assert (answer.status_code, answer.json()) == (200, {"stopReason": "end_turn", "messages": []})
        else:
            events = parse_events(answer.text)
            assert [event[1] for event in events] == ["turn_start", "turn_stop"]
            assert events[-1][2] == {"stopReason": "end_turn"}
    await assert_never_given(scenes)
    assert (await get_history(portico.client, session))[2:] == [user_message("second")]
    body = {"agent": {"options": {"scenario": "scene.json"}}}
    assert (await send_turn(portico.client, session, "third", **body))["stopReason"] == "end_turn"


async def test_submission_that_is_refused_while_it_waits_for_the_lock_prompts_no_warm_agent(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    session = await portico.gateway.sessions.get(ADMINISTRATOR, await idle_session(portico, write_scenario))
    assert session.live is not None
    async with session.lock:
        submitting = asyncio.create_task(session.submit(Submission(message=HELLO)))
        await asyncio.sleep(0)
        session.leave(ShuttingDown("the gateway is shutting down"))
    with pytest.raises(ShuttingDown):
        await submitting
    assert len(await get_history(portico.client, session.id)) == 2


@pytest.mark.parametrize("key", [None, IdempotencyKey("key", "digest")], ids=["no key", "key"])
async def test_cancel_that_finds_the_message_behind_the_lock_cancels_it(
    portico: RunningGateway, write_scenario: WriteScenario, scenes: Path, key: IdempotencyKey | None
) -> None:
    """Also where the agent is there already, so that nothing would be started."""
    name = write_scenario({"when": "first", "steps": [{"text": "one"}]}, {"when": "hello", "steps": GIVEN})
    found = await create_session(portico.client, "script", "first", options={"scenario": name})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    async with session.lock:
        submitting = asyncio.create_task(session.submit(Submission(message=HELLO, key=key)))
        await asyncio.sleep(0)
        cancelling = [asyncio.create_task(session.cancel()) for _ in range(3)]
        await asyncio.sleep(0)
    turn = await submitting
    assert await asyncio.gather(*cancelling) == [True, False, False], "one of them has found it"
    assert [entry.event.kind async for batch in turn.batches() for entry in batch][-1] == "session_end"
    assert session.live is not None and session.live.alive
    assert (await send_turn(portico.client, session.id, "first"))["messages"][-1]["content"] == "one"
    assert not (scenes / "given").exists()
    cancellations: list[asyncio.Task[bool]] = []
    await session.submit(Submission(message=HELLO, began=lambda _: cancellations.append(asyncio.create_task(session.cancel()))))
    assert await cancellations[0]
    assert session.run is not None and session.run.agent is None, "the message was stored, and not given"


async def test_deleted_session_ends_the_start_of_its_agent(
    portico: RunningGateway, write_scenario: WriteScenario, slow: str, scenes: Path
) -> None:
    session = await idle_session(portico, write_scenario)
    turn = asyncio.create_task(portico.client.post(f"/session/{session}", json=slow_turn(slow)))
    await read_pid(scenes / "starting")
    assert (await portico.client.delete(f"/session/{session}")).status_code == 204
    assert "was deleted" in await expect_error(turn_response(turn), 404)
    await assert_never_given(scenes)
    await expect_error(portico.client.get(f"/session/{session}"), 404)


async def test_refused_deletion_does_not_refuse_the_turn_whose_agent_starts(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    async with run_faulty_gateway(gateway_config(tmp_path)) as (portico, faults):
        session, scenes = await idle_session(portico, write_scenario), tmp_path / "scenes"
        start = [STARTS[0], {"wait_for_file": "go"}]
        (scenes / "held.json").write_text(json.dumps({"start": start, "turns": [{"steps": [*GIVEN, {"text": "two"}]}]}))
        turn = asyncio.create_task(portico.client.post(f"/session/{session}", json=slow_turn("held.json")))
        await read_pid(scenes / "starting")
        faults.fail("sessions.delete")
        await expect_error(portico.client.delete(f"/session/{session}"), 503)
        (scenes / "go").touch()
        answer = await turn
        assert (answer.status_code, answer.json()["messages"][-1]["content"]) == (200, "two")
        assert (scenes / "given").exists()
        faults.clear()
        assert (await portico.client.delete(f"/session/{session}")).status_code == 204


async def test_message_of_a_session_that_is_deleted_before_it_is_stored_is_not_given(
    portico: RunningGateway, write_scenario: WriteScenario, scenes: Path
) -> None:
    name = write_scenario({"when": "first", "steps": [{"text": "one"}]}, {"when": "hello", "steps": GIVEN})
    found = await create_session(portico.client, "script", "first", options={"scenario": name})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    async with session.lock:
        submitting = asyncio.create_task(session.submit(Submission(message=HELLO)))
        deleting = asyncio.create_task(portico.gateway.sessions.delete(ADMINISTRATOR, session.id))
        await wait_until(lambda: session.deleted)
        with pytest.raises(NotFound):
            await portico.gateway.sessions.delete(ADMINISTRATOR, session.id)
    with pytest.raises(NotFound):
        await submitting
    await deleting
    assert not (scenes / "given").exists()
    assert await portico.gateway.store.runs.last(session.id) is None


async def turn_response(turn: asyncio.Task[httpx.Response]) -> httpx.Response:
    """Wait for the response of a request that was sent in the background."""
    return await turn


@pytest.mark.parametrize(("created", "mode"), [(False, "delta"), (True, "none")], ids=["turn", "create"])
async def test_disconnected_client_cancels_the_start_if_it_has_requested_that(
    portico: RunningGateway, write_scenario: WriteScenario, slow: str, scenes: Path, mode: str, created: bool
) -> None:
    fields = {"stream": mode, "on_disconnect": "cancel"}
    if created:
        body = session_body("script", "second", options={"scenario": slow}, **fields)
        turn = asyncio.create_task(portico.client.put("/session", json=body))
    else:
        session = await idle_session(portico, write_scenario)
        turn = asyncio.create_task(portico.client.post(f"/session/{session}", json=slow_turn(slow, **fields)))
    await read_pid(scenes / "starting")
    turn.cancel()
    await asyncio.wait([turn])
    await assert_never_given(scenes)
    session = (await portico.client.get("/sessions")).json()["sessions"][0]
    history = await wait_until(lambda: messages_of(portico.client, session, "second"))
    assert history[-1] == user_message("second")


async def messages_of(client: httpx.AsyncClient, session: str, last: str) -> list[dict[str, Any]] | None:
    """Return the history if it ends with this text."""
    history = await get_history(client, session)
    return history if history and history[-1]["content"] == last else None


async def test_cancel_of_a_resumption_whose_agent_starts_keeps_the_answers(
    portico: RunningGateway, write_scenario: WriteScenario, slow: str, scenes: Path
) -> None:
    session = await create_waiting_session(portico, write_scenario)
    await suspend(session)
    body = {"messages": [ANSWER], "agent": {"options": {"scenario": slow}}}
    turn = asyncio.create_task(portico.client.post(f"/session/{session.id}", json=body))
    await read_pid(scenes / "starting")
    await post_cancel(portico.client, session.id)
    assert (await turn).json() == {"stopReason": "end_turn", "messages": []}
    await assert_never_given(scenes)
    assert (await get_history(portico.client, session.id))[-1] == ANSWER


async def test_cancelled_message_to_a_suspended_run_cancels_its_calls(
    portico: RunningGateway, write_scenario: WriteScenario, slow: str, scenes: Path
) -> None:
    session = await create_waiting_session(portico, write_scenario)
    await suspend(session)
    turn = asyncio.create_task(portico.client.post(f"/session/{session.id}", json=slow_turn(slow)))
    await read_pid(scenes / "starting")
    await post_cancel(portico.client, session.id)
    assert (await turn).json()["stopReason"] == "end_turn"
    await assert_never_given(scenes)
    history = await get_history(portico.client, session.id)
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "user"]


async def test_cancelled_acp_prompt_is_answered_while_its_agent_starts(
    acp: Open, portico: RunningGateway, slow: str, scenes: Path
) -> None:
    client = await acp()
    session = await scripted_session(client, portico.gateway, slow)
    answer = await client.begin("session/prompt", prompt(session, "second"))
    await read_pid(scenes / "starting")
    await client.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    await assert_never_given(scenes)


async def test_closed_acp_session_ends_the_start_of_its_agent(
    acp: Open, portico: RunningGateway, slow: str, scenes: Path
) -> None:
    client = await acp()
    session = await scripted_session(client, portico.gateway, slow)
    answer = await client.begin("session/prompt", prompt(session, "second"))
    await read_pid(scenes / "starting")
    await client.request("session/close", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    await assert_never_given(scenes)


async def test_shutdown_refuses_a_turn_whose_agent_starts(
    portico: RunningGateway, write_scenario: WriteScenario, slow: str, scenes: Path
) -> None:
    session = await idle_session(portico, write_scenario)
    turn = asyncio.create_task(portico.client.post(f"/session/{session}", json=slow_turn(slow)))
    await read_pid(scenes / "starting")
    await portico.gateway.stop_runs()
    assert "shut down" in await expect_error(turn_response(turn), 503)
    await assert_never_given(scenes)
    assert len(await get_history(portico.client, session)) == 2


async def test_cancel_ends_an_agent_that_does_not_let_go_of_its_calls(tmp_path: Path, write_scenario: WriteScenario) -> None:
    """A message cancels the pending call of an agent that is frozen, which would have `grace` seconds to end its prompt."""
    async with run_gateway(gateway_config(tmp_path, limits={"grace": 120})) as portico:
        session = await create_waiting_session(portico, write_scenario)
        waiting = session.run
        assert session.live is not None
        agent = psutil.Process(session.live.pid)  # type: ignore[attr-defined]
        agent.suspend()
        turn = asyncio.create_task(portico.client.post(f"/session/{session.id}", json={"messages": [user_message("And?")]}))
        await wait_until(lambda: session.run is not waiting)
        began = time.monotonic()
        assert (await portico.client.post(f"/session/{session.id}/cancel")).json()["cancelled"]
        assert time.monotonic() - began < 60, "0.7 s on an idle machine"
        assert (await turn).json() == {"stopReason": "end_turn", "messages": []}
        assert not agent.is_running()
        assert (await send_turn(portico.client, session.id, "And?"))["messages"][-1]["content"] == "here"
