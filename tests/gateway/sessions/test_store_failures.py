"""Sessions whose store fails for a time: their agents, the next turns, and what is stored once it works again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.contract.agent import Agent, Prompt
from drivers.contract.errors import InputFull
from drivers.contract.messages import UserMessage
from gateway.errors import Conflict
from gateway.events.event_log import REQUEST_TIMEOUT, RETRY, STOP_TIMEOUT, STORE_TIMEOUT
from gateway.runs.idempotency import IdempotencyKey
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions import live_agent
from gateway.sessions.session import Session, Submission
from tests.gateway.cli.test_acp import small_agent
from tests.gateway.sessions.test_submit import ANSWER, CALL, WEATHER, suspend
from tests.support.daemon import RunningGateway, gateway_config
from tests.support.faulty_store import StoreFaults, run_faulty_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import create_session, expect_error, get_history, get_session, send_turn, user_message
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
FaultyGateway = tuple[RunningGateway, StoreFaults]
UNLIMITED = {"idle": 0.0, "total": 0.0}
"""What is tried again each second turns the clock by many minutes while an agent starts on a busy machine."""


@pytest.fixture
async def faulty(tmp_path: Path, clock: ManualClock) -> AsyncIterator[FaultyGateway]:
    async with run_faulty_gateway(gateway_config(tmp_path, limits=UNLIMITED), clock) as found:
        yield found


async def test_native_id_that_cannot_be_stored_at_first_is_stored_later(tmp_path: Path, clock: ManualClock) -> None:
    config = gateway_config(tmp_path, agents={"small": small_agent(tmp_path)}, limits=UNLIMITED)
    async with run_faulty_gateway(config, clock) as (portico, faults):
        faults.fail("sessions.update")
        creating = create_session(portico.client, "small", "say hello")
        session = (await clock.expire_until(creating, live_agent.STORE_TIMEOUT))["sessionId"]
        turn = await clock.expire_until(send_turn(portico.client, session, "recall"), live_agent.STORE_TIMEOUT)
        assert turn["messages"][0]["content"] == "say hello | recall"
        record = await portico.gateway.store.sessions.get(session)
        assert record is not None and record.native_id is None
        await clock.expire_until(end_idle_agent(portico, session), live_agent.STORE_TIMEOUT)
        # Loaded again now, it would resume another native session, or none.
        assert [found.id for found in portico.gateway.sessions.held] == [session]
        faults.clear()

        async def stored() -> bool:
            found = await portico.gateway.store.sessions.get(session)
            return found is not None and found.native_id is not None

        await clock.expire_until(wait_until(stored), RETRY)
        await wait_until(lambda: not portico.gateway.sessions.held)


async def test_native_id_that_cannot_be_stored_is_dropped_at_shutdown(tmp_path: Path, clock: ManualClock) -> None:
    config = gateway_config(tmp_path, agents={"small": small_agent(tmp_path)}, limits=UNLIMITED)
    async with run_faulty_gateway(config, clock) as (portico, faults):
        faults.fail("sessions.update")
        creating = create_session(portico.client, "small", "say hello")
        session = (await clock.expire_until(creating, live_agent.STORE_TIMEOUT))["sessionId"]
        await clock.expire_until(end_idle_agent(portico, session), live_agent.STORE_TIMEOUT)
        gc.collect()
        await clock.expire_until(portico.gateway.close(), live_agent.STORE_TIMEOUT)
        assert [task for task in asyncio.all_tasks() if live_agent.LiveAgent.__name__ in str(task)] == []


PARAGRAPHS = [{"text": "one"}, {"message_end": True}, {"text": "two"}, {"message_end": True}, {"text": "three"}]
TEXTS = ["one", "two", "three"]


def echo_scenario(write_scenario: WriteScenario) -> dict[str, str]:
    """Return the options of a scenario that answers `go` with TEXTS, and every other prompt with that prompt."""
    return {"scenario": write_scenario({"when": "go", "steps": PARAGRAPHS}, [{"text": "{prompt}"}])}


async def last_stop_reason(portico: RunningGateway, session: str) -> str | None:
    """Return how the session's last run has ended, None if it is not stored yet."""
    run = await portico.gateway.store.runs.last(session)
    return run.stop_reason if run is not None else None


async def live_agent_of(portico: RunningGateway, session: str) -> Agent | None:
    return (await portico.gateway.sessions.get(ADMINISTRATOR, session)).live


async def end_idle_agent(portico: RunningGateway, session: str) -> None:
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    async with found.lock:
        await found.sleep()
    assert (found.state, found.live) == ("idle", None)


async def assert_next_turns_are_answered(portico: RunningGateway, session: str) -> None:
    for prompt in ("C", "D", "E"):
        assert (await send_turn(portico.client, session, prompt))["messages"][-1]["content"] == prompt


async def test_output_is_kept_while_the_store_fails_for_a_time(
    faulty: FaultyGateway, clock: ManualClock, write_scenario: WriteScenario
) -> None:
    portico, faults = faulty
    for operations in (["events.append"], ["runs.stop"], ["events.append", "runs.stop"]):
        session = (await create_session(portico.client, "script", "A", options=echo_scenario(write_scenario)))["sessionId"]
        for operation in operations:
            faults.fail(operation, times=3)
        answer = await clock.expire_until(send_turn(portico.client, session, "go"), RETRY)
        assert (answer["stopReason"], [message["content"] for message in answer["messages"]]) == ("end_turn", TEXTS), operations
        faults.clear()
        history = [message["content"] for message in await get_history(portico.client, session)]
        assert history == ["A", "A", "go", *TEXTS], operations
        await assert_next_turns_are_answered(portico, session)


async def test_run_that_cannot_be_stored_ends_with_its_agent_and_is_stored_later(
    faulty: FaultyGateway, clock: ManualClock, write_scenario: WriteScenario
) -> None:
    """Its session stays in memory until then: loaded again before, it would give the numbers of its events to others."""
    portico, faults = faulty
    options = echo_scenario(write_scenario)
    session = (await create_session(portico.client, "script", "A", options=options))["sessionId"]
    first = await live_agent_of(portico, session)
    before = await portico.gateway.store.events.last_seq(session)
    faults.fail("events.append")
    faults.fail("runs.stop")
    turn = asyncio.create_task(send_turn(portico.client, session, "go"))
    await clock.expire(STORE_TIMEOUT)
    answer = await turn
    assert answer["stopReason"] == "error"
    assert "cannot be stored" in answer["x-portico"]["error"]
    refused = asyncio.create_task(portico.client.post(f"/session/{session}", json={"messages": [user_message("B")]}))
    await clock.expire(REQUEST_TIMEOUT)
    assert "not stored yet" in await expect_error(refused, 503)
    await end_idle_agent(portico, session)
    gc.collect()
    assert [found.id for found in portico.gateway.sessions.held] == [session]
    assert (await portico.gateway.sessions.get(ADMINISTRATOR, session)).log.last > before + len(TEXTS)
    faults.clear()
    await clock.expire_until(wait_until(lambda: not portico.gateway.sessions.held), RETRY)
    assert await portico.gateway.store.runs.unfinished() == []
    await assert_next_turns_are_answered(portico, session)
    assert first is not None and not first.alive
    history = [message["content"] for message in await get_history(portico.client, session)]
    assert history == ["A", "A", "go", *TEXTS, "C", "C", "D", "D", "E", "E"]


@pytest.mark.parametrize("operation", ["audit.append", "session_metadata.update"])
async def test_agent_is_ended_with_a_run_that_fails(
    tmp_path: Path, clock: ManualClock, write_scenario: WriteScenario, operation: str
) -> None:
    """The agent goes on working when its run fails: it must not answer the next prompt with the rest of its output."""
    step = {"title": "T"} if operation == "session_metadata.update" else {"tool_call": {"id": "c", "name": "shell"}}
    steps = [
        {"text": "one"},
        step,
        {"message_end": True},
        *({"delay": 0.01} if n % 2 else {"text": f"more {n}"} for n in range(40)),
    ]
    options = {"scenario": write_scenario({"when": "go", "steps": steps}, [{"text": "{prompt}"}])}
    async with run_faulty_gateway(gateway_config(tmp_path, limits=UNLIMITED), clock) as (portico, faults):
        grants = [{"name": "shell", "trust": True}]
        answer = await create_session(portico.client, "script", "A", options=options, grants=grants)
        agent = await live_agent_of(portico, answer["sessionId"])
        fault = faults.fail(operation)
        failed = await clock.expire_until(send_turn(portico.client, answer["sessionId"], "go"), RETRY)
        assert failed["stopReason"] == "error" and "the store cannot be written" in failed["x-portico"]["error"]
        assert fault.failures
        assert agent is not None and not agent.alive
        faults.clear()
        await assert_next_turns_are_answered(portico, answer["sessionId"])


async def test_run_is_cancelled_while_the_store_fails(
    faulty: FaultyGateway, clock: ManualClock, write_scenario: WriteScenario
) -> None:
    portico, faults = faulty
    name = write_scenario({"when": "go", "steps": [{"text": "one"}, {"hang": True}]}, [{"text": "{prompt}"}])
    session = (await create_session(portico.client, "script", "A", options={"scenario": name}))["sessionId"]
    fault = faults.fail("events.append")
    faults.fail("runs.stop")
    turn = asyncio.create_task(send_turn(portico.client, session, "go"))
    await fault.raised()
    cancelling = portico.client.post(f"/session/{session}/cancel")
    assert (await clock.expire_until(cancelling, STOP_TIMEOUT)).status_code == 200
    await clock.expire_until(turn, STOP_TIMEOUT)
    faults.clear()
    await clock.expire_until(wait_until(lambda: last_stop_reason(portico, session)), RETRY)
    assert await last_stop_reason(portico, session) == "cancelled"
    await assert_next_turns_are_answered(portico, session)


async def test_prompt_of_a_turn_that_is_not_stored_is_not_given(faulty: FaultyGateway, write_scenario: WriteScenario) -> None:
    key = {"Idempotency-Key": "k"}
    portico, faults = faulty
    name = write_scenario([{"remember": True}])
    session = (await create_session(portico.client, "script", "A", options={"scenario": name}))["sessionId"]
    live, before = await live_agent_of(portico, session), await get_session(portico.client, session)
    fault = faults.fail("runs.start", times=1)
    body = {"messages": [user_message("refused")]}
    await expect_error(portico.client.post(f"/session/{session}", json=body, headers=key), 503)
    assert fault.failures == 1
    assert await get_session(portico.client, session) == before
    assert await live_agent_of(portico, session) is live
    answer = await portico.client.post(f"/session/{session}", json=body, headers=key)
    assert answer.json()["messages"][-1]["content"] == '["A"]'
    assert await live_agent_of(portico, session) is live


async def create_waiting_session(portico: RunningGateway, write_scenario: WriteScenario) -> str:
    """Create a session that waits for the result of the call `sky`."""
    name = write_scenario([CALL, {"text": "{results.sky}"}], [{"text": "{prompt}"}])
    answer = await create_session(portico.client, "script", "Go", options={"scenario": name}, tools=[WEATHER])
    assert answer["stopReason"] == "tool_use"
    return str(answer["sessionId"])


async def test_calls_stay_pending_when_the_message_that_cancels_them_cannot_be_stored(
    faulty: FaultyGateway, write_scenario: WriteScenario
) -> None:
    portico, faults = faulty
    for suspended in (True, False):
        session = await create_waiting_session(portico, write_scenario)
        if suspended:
            await suspend(await portico.gateway.sessions.get(ADMINISTRATOR, session))
        before = await get_session(portico.client, session)
        fault = faults.fail("runs.start", times=1)
        message = {"messages": [user_message("other")]}
        await expect_error(portico.client.post(f"/session/{session}", json=message), 503)
        assert fault.failures == 1
        assert await get_session(portico.client, session) == before
        assert (await send_turn(portico.client, session, ANSWER))["messages"][-1]["content"] == "sun"


async def test_message_cancels_pending_calls_in_the_transaction_of_its_run(
    faulty: FaultyGateway, write_scenario: WriteScenario
) -> None:
    portico, faults = faulty
    session = await create_waiting_session(portico, write_scenario)
    live, stops = await live_agent_of(portico, session), faults.operations["runs.stop"]
    assert (await send_turn(portico.client, session, "other"))["messages"][-1]["content"] == "other"
    assert await live_agent_of(portico, session) is live
    assert faults.operations["runs.stop"] == stops + 1, "the run of the message only"
    history = await get_history(portico.client, session)
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "user", "assistant"]
    assert history[2]["content"] == "Tool call cancelled"
    assert await portico.gateway.store.runs.unfinished() == []
    await assert_next_turns_are_answered(portico, session)


async def test_deletion_that_cannot_be_stored_changes_nothing(faulty: FaultyGateway, write_scenario: WriteScenario) -> None:
    portico, faults = faulty
    waiting = await create_waiting_session(portico, write_scenario)
    before = await get_session(portico.client, waiting)
    faults.fail("sessions.delete")
    await expect_error(portico.client.delete(f"/session/{waiting}"), 503)
    assert await get_session(portico.client, waiting) == before
    assert (await send_turn(portico.client, waiting, ANSWER))["messages"][-1]["content"] == "sun"
    faults.clear()
    agent = await live_agent_of(portico, waiting)
    assert (await portico.client.delete(f"/session/{waiting}")).status_code == 204
    await expect_error(portico.client.get(f"/session/{waiting}"), 404)
    assert agent is not None and not agent.alive


STEERED = [{"text": "begin"}, {"wait_for_file": "go"}, {"message_end": True}, {"text": "steered: {steered}"}]


async def test_steered_message_is_stored_together_with_its_key(
    faulty: FaultyGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    """A daemon that is killed before that has nothing of the message, and its repetition begins another run."""
    portico, _ = faulty
    name = write_scenario({"when": "go", "steps": STEERED}, [{"text": "{prompt}"}])
    session = (await create_session(portico.client, "script", "A", options={"scenario": name}))["sessionId"]
    turn = asyncio.create_task(send_turn(portico.client, session, "go"))
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    await wait_until(lambda: found.busy)
    steer = Submission(message=UserMessage(content="left!"), when_busy="steer", key=IdempotencyKey("key", "digest"))
    steered = await found.submit(steer)
    record = await portico.gateway.store.idempotency_keys.get("key")
    assert record is not None and record.first_seq == steered.first
    (tmp_path / "scenes" / "go").touch()
    assert (await turn)["messages"][-1]["content"] == "steered: left!"
    assert [message["content"] for message in await get_history(portico.client, session)].count("left!") == 1


@pytest.fixture
async def busy(faulty: FaultyGateway, write_scenario: WriteScenario) -> AsyncIterator[Session]:
    """A session at work on a turn, which goes on until it is cancelled."""
    portico, _ = faulty
    name = write_scenario({"when": "go", "steps": [{"text": "begin"}, {"wait_for_file": "go"}]}, [{"text": "{prompt}"}])
    created = await create_session(portico.client, "script", "A", options={"scenario": name})
    turn = asyncio.create_task(send_turn(portico.client, created["sessionId"], "go"))
    found = await portico.gateway.sessions.get(ADMINISTRATOR, created["sessionId"])
    await wait_until(lambda: found.run is not None and found.busy and found.log.last > found.run.first_seq)
    yield found
    await found.cancel()
    await turn


async def post_steer(portico: RunningGateway, session: Session, text: str, stream: str = "delta") -> httpx.Response:
    """Steer the run under a key, and cancel the run if the message was accepted, so that its response ends."""
    body = {"messages": [user_message(text)], "when_busy": "steer", "stream": stream}
    headers = {"Idempotency-Key": "k"}
    url = f"/session/{session.id}"
    async with portico.client.stream("POST", url, json=body, headers=headers) as response:
        if response.status_code == 200:
            await session.cancel()
        await response.aread()
        return response


async def texts_of(portico: RunningGateway, session: Session) -> list[str]:
    return [message["content"] for message in await get_history(portico.client, session.id)]


async def test_steered_message_that_was_refused_is_sent_when_repeated(
    faulty: FaultyGateway, busy: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    portico, _ = faulty
    refusals: list[InputFull | None] = [None, InputFull("full")]

    async def refuse(prompt: Prompt) -> bool:
        refusal = refusals.pop(0)
        if refusal is not None:
            raise refusal
        return False

    assert busy.live is not None
    with monkeypatch.context() as patch:
        patch.setattr(busy.live, "steer", refuse)
        assert (await post_steer(portico, busy, "left!")).status_code == 409
        assert (await post_steer(portico, busy, "left!")).status_code == 429
    assert (await post_steer(portico, busy, "left!")).status_code == 200
    assert (await texts_of(portico, busy)).count("left!") == 1


async def test_steered_message_that_cannot_be_stored_yet_is_not_sent_again(
    faulty: FaultyGateway, clock: ManualClock, busy: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    portico, faults = faulty
    monkeypatch.setattr(IdempotencyKey, "of", lambda *_: IdempotencyKey("key", "digest"))
    faults.fail("events.append")
    message = Submission(message=UserMessage(content="left!"), when_busy="steer", key=IdempotencyKey("key", "digest"))
    first = await clock.expire_until(asyncio.create_task(busy.submit(message)), RETRY)
    assert await portico.gateway.store.idempotency_keys.get("key") is None
    # While the run is at work, and the store does not have the key.
    assert (await busy.submit(message)).first == first.first
    with pytest.raises(Conflict, match="belongs to another request"):
        await busy.submit(replace(message, key=IdempotencyKey("key", "another digest")))
    faults.clear()
    await clock.expire_until(wait_until(lambda: busy.log.unwritten == 0), RETRY)
    again = await post_steer(portico, busy, "left!")
    assert again.status_code == 200
    record = await portico.gateway.store.idempotency_keys.get("key")
    assert record is not None and record.first_seq == first.first
    assert (await texts_of(portico, busy)).count("left!") == 1


@pytest.mark.parametrize(("operation", "messages"), [("runs.start", [user_message("other")]), ("runs.resume", [ANSWER])])
async def test_settings_are_stored_in_the_transaction_of_their_turn(
    faulty: FaultyGateway, write_scenario: WriteScenario, operation: str, messages: list[dict[str, Any]]
) -> None:
    portico, faults = faulty
    session = await create_waiting_session(portico, write_scenario)
    before, updates = await portico.gateway.store.sessions.get(session), faults.operations["sessions.update"]
    turn = {"messages": messages, "agent": {"options": {"pace": "fast"}}}
    faults.fail(operation, times=1)
    faults.fail("sessions.update")
    await expect_error(portico.client.post(f"/session/{session}", json=turn), 503)
    assert await portico.gateway.store.sessions.get(session) == before
    assert (await portico.client.post(f"/session/{session}", json=turn)).status_code == 200
    record = await portico.gateway.store.sessions.get(session)
    assert record is not None and record.config["options"]["pace"] == "fast"
    assert faults.operations["sessions.update"] == updates


async def test_answer_that_is_repeated_is_audited_once(faulty: FaultyGateway, write_scenario: WriteScenario) -> None:
    portico, faults = faulty
    session = await create_waiting_session(portico, write_scenario)
    faults.fail("runs.resume", times=1)
    await expect_error(portico.client.post(f"/session/{session}", json={"messages": [ANSWER]}), 503)
    await send_turn(portico.client, session, ANSWER)
    assert [found.outcome for found in await portico.gateway.store.audit.newest(10, session)] == ["asked", "answered"]


async def test_calls_that_are_not_answered_in_time_are_denied_when_the_store_works_again(
    tmp_path: Path, clock: ManualClock, write_scenario: WriteScenario
) -> None:
    async with run_faulty_gateway(gateway_config(tmp_path, limits=UNLIMITED | {"answer": 30.0}), clock) as (portico, faults):
        fault = faults.fail("runs.resume", times=3)
        session = await create_waiting_session(portico, write_scenario)
        found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
        await clock.expire(30.0)
        await clock.expire_until(wait_until(lambda: found.state == "idle"), RETRY)
        assert fault.failures == 3
