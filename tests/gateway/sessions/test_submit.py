"""A rejected turn has no effect: settings are unchanged, in memory and in the store, and calls stay pending."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from drivers.contract.agent import ToolReply
from drivers.contract.messages import UserMessage
from drivers.runtime.cli_agent import CliAgent
from gateway.errors import AgentProblem, BadRequest, Conflict, ShuttingDown
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.client_service_routing import SessionServices
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings
from tests.gateway.protocols.acp.conftest import acp as acp
from tests.gateway.protocols.acp.conftest import scripted_session
from tests.support.acp_client import RpcFailed, prompt
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session, expect_error, get_history, get_session, send_turn, user_message

WriteScenario = Callable[..., str]
Open = Callable[..., Awaitable[Any]]

WEATHER = {"name": "weather", "description": "The weather.", "inputSchema": {"type": "object"}}
CALL = {"app_tool": {"id": "sky", "name": "weather"}}
ANSWER = {"role": "tool", "toolCallId": "sky", "content": "sun"}
HELLO = UserMessage(content="hello")


async def create_waiting_session(portico: RunningGateway, write_scenario: WriteScenario) -> Session:
    """Create a session that waits for the result of the call `sky`."""
    name = write_scenario({"when": "And?", "steps": [{"text": "here"}]}, [CALL, {"text": "{results.sky}"}])
    answer = await create_session(portico.client, "script", "Go", options={"scenario": name}, tools=[WEATHER])
    assert answer["stopReason"] == "tool_use"
    return await portico.gateway.sessions.get(ADMINISTRATOR, answer["sessionId"])


async def suspend(session: Session) -> None:
    """Kill the agent process, so that the run is suspended."""
    assert session.live is not None and session.run is not None
    psutil.Process(session.live.pid).kill()  # type: ignore[attr-defined]
    await session.run.wait()
    assert session.run.suspended


async def stored_state(portico: RunningGateway, session: Session) -> tuple[Any, ...]:
    """Return the state that a rejected request must not change."""
    record = await portico.gateway.store.sessions.get(session.id)
    assert record is not None
    return session.config, record.config, session.state, session.log.last, await get_session(portico.client, session.id)


async def test_calls_stay_pending_when_the_agent_for_a_message_cannot_start(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    for suspended in (True, False):
        session = await create_waiting_session(portico, write_scenario)
        turn: dict[str, Any] = {"messages": [user_message("other")]}
        if suspended:
            await suspend(session)
        else:
            turn["agent"] = {"options": {"scenario": "missing.json"}}
        before = await stored_state(portico, session)
        scenario = tmp_path / "scenes" / "scene.json"
        hidden = scenario.rename(scenario.with_suffix(".hidden"))
        text = await expect_error(portico.client.post(f"/session/{session.id}", json=turn), 503)
        assert "cannot start" in text
        hidden.rename(scenario)
        assert await stored_state(portico, session) == before
        answer = await send_turn(portico.client, session.id, ANSWER)
        assert (answer["stopReason"], answer["messages"][-1]["content"]) == ("end_turn", "sun"), suspended


async def test_message_with_new_settings_cancels_the_pending_calls(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    session = await create_waiting_session(portico, write_scenario)
    answer = await send_turn(portico.client, session.id, "And?", agent={"options": {"pace": "fast"}})
    assert answer["messages"][-1]["content"] == "here"
    messages = await get_history(portico.client, session.id)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert messages[2]["content"] == "Tool call cancelled"
    assert session.config.options["pace"] == "fast"


async def test_message_to_a_suspended_run_cancels_its_calls(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    session = await create_waiting_session(portico, write_scenario)
    await suspend(session)
    assert (await send_turn(portico.client, session.id, "And?"))["messages"][-1]["content"] == "here"
    roles = [message["role"] for message in await get_history(portico.client, session.id)]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


async def test_settings_of_rejected_replies_are_not_stored(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    session = await create_waiting_session(portico, write_scenario)
    await suspend(session)
    before = await stored_state(portico, session)
    agent = {"options": {"scenario": "missing.json"}}
    body = {"messages": [ANSWER], "agent": agent}
    await expect_error(portico.client.post(f"/session/{session.id}", json=body), 503)
    assert await stored_state(portico, session) == before
    assert (await send_turn(portico.client, session.id, ANSWER))["messages"][-1]["content"] == "sun"


async def test_permission_option_changes_no_settings_when_the_agent_cannot_start(
    acp: Open, portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    client = await acp()
    name = write_scenario([{"tool_call": {"id": "c", "name": "shell"}}, {"text": "{last_result}"}])
    session = await portico.gateway.sessions.get(ADMINISTRATOR, await scripted_session(client, portico.gateway, name))
    answer = await client.begin("session/prompt", prompt(session.id, "go"))
    question = await client.next_permission_request()
    await suspend(session)
    before = await stored_state(portico, session)
    scenario = tmp_path / "scenes" / name
    hidden = scenario.rename(scenario.with_suffix(".hidden"))
    await client.answer(question, "allow_always")
    with pytest.raises(RpcFailed, match="cannot start"):
        await answer
    hidden.rename(scenario)
    assert await stored_state(portico, session) == before
    reply = {"role": "tool_permission", "toolCallId": "c", "granted": False}
    assert (await send_turn(portico.client, session.id, reply))["stopReason"] == "end_turn"


async def test_permission_whose_answer_failed_is_requested_again_by_the_next_prompt(
    acp: Open, portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    client = await acp()
    name = write_scenario([{"tool_call": {"id": "c", "name": "shell"}}, {"text": "{last_result}"}])
    session = await portico.gateway.sessions.get(ADMINISTRATOR, await scripted_session(client, portico.gateway, name))
    answer = await client.begin("session/prompt", prompt(session.id, "go"))
    question = await client.next_permission_request()
    await suspend(session)
    scenario = tmp_path / "scenes" / name
    hidden = scenario.rename(scenario.with_suffix(".hidden"))
    await client.answer(question, "allow_once")
    with pytest.raises(RpcFailed, match="cannot start"):
        await answer
    hidden.rename(scenario)
    held = await client.begin("session/prompt", prompt(session.id, "go on"))
    await client.answer(await client.next_permission_request(), "reject_once")
    # The held prompt makes the same call: a second request.
    await client.answer(await client.next_permission_request(), "allow_once")
    assert (await held)["stopReason"] == "end_turn"


async def test_turn_that_is_not_admitted_has_no_effect(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with run_gateway(gateway_config(tmp_path, limits={"live_agents": 1})) as portico:
        session = await create_waiting_session(portico, write_scenario)
        await suspend(session)
        before = await stored_state(portico, session)
        busy = write_scenario([{"text": "busy"}, {"hang": True}], name="busy.json")
        async with portico.client.stream(
            "PUT",
            "/session",
            json={"agent": {"name": "script", "options": {"scenario": busy}}, "messages": [user_message()], "stream": "delta"},
        ) as other:
            assert other.status_code == 200
            services = session.services.client = SessionServices()
            for messages in ([user_message()], [ANSWER]):
                turn = {"messages": messages, "agent": {"options": {"pace": "fast"}}}
                await expect_error(portico.client.post(f"/session/{session.id}", json=turn), 429)
                assert await stored_state(portico, session) == before
                assert session.services.client is services
            for one in portico.gateway.sessions.held:
                if one is not session:
                    await one.cancel()
        assert (await send_turn(portico.client, session.id, ANSWER))["messages"][-1]["content"] == "sun"


def faster(config: SessionSettings) -> SessionSettings:
    return replace(config, options={**config.options, "pace": "fast"})


def unknown(config: SessionSettings) -> SessionSettings:
    raise BadRequest("no such option")


async def test_rejected_submissions_have_no_effect(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await create_waiting_session(portico, write_scenario)
    services = session.services.client = SessionServices()
    before = await stored_state(portico, session)

    async def expect_rejected(kind: type[Exception], submission: Submission) -> None:
        with pytest.raises(kind):
            await session.submit(submission)
        assert await stored_state(portico, session) == before
        assert session.services.client is services

    await expect_rejected(BadRequest, Submission(message=HELLO, settings=unknown))
    await expect_rejected(BadRequest, Submission(replies=[], settings=faster))
    await expect_rejected(BadRequest, Submission(replies=[], settings=faster, run_id="another run"))
    await expect_rejected(Conflict, Submission(message=HELLO, settings=faster, cancel_pending=False))
    with monkeypatch.context() as patch:
        patch.setattr(session._admission, "_closing", True)
        await expect_rejected(ShuttingDown, Submission(message=HELLO, settings=faster))
    with monkeypatch.context() as patch:

        async def failing(*_: Any, **__: Any) -> None:
            raise AgentProblem("no")

        patch.setattr(session._agent, "start", failing)
        await expect_rejected(AgentProblem, Submission(message=HELLO, settings=faster))
        assert session.run is not None and session.run.suspended
        await expect_rejected(AgentProblem, Submission(message=HELLO, services=SessionServices()))
    assert (await send_turn(portico.client, session.id, ANSWER))["messages"][-1]["content"] == "sun"


async def test_settings_are_those_of_the_last_stored_turn_when_its_agent_does_not_take_the_prompt(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_scenario([{"text": "here"}])
    found = await create_session(portico.client, "script", "Go", options={"scenario": name})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    before = session.config

    async def failing(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    for owner, method, kept in ((portico.gateway.store.runs, "start", before), (CliAgent, "prompt", faster(before))):
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, failing)
            with pytest.raises(OSError, match="disk full"):
                await session.submit(Submission(message=HELLO, settings=faster))
        record = await portico.gateway.store.sessions.get(session.id)
        assert session.config == kept and record is not None and record.config == kept.to_json()
    assert session.live is None and session.state == "idle", "the agent may have the prompt"


async def test_new_session_does_not_wait_for_calls_of_its_given_history(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    call = {"type": "tool_use", "toolCallId": "sky", "name": "weather", "input": {}}
    past = [user_message("Go"), {"role": "assistant", "content": [call]}]
    options = {"scenario": write_scenario({"when": "And?", "steps": [{"text": "here"}]})}
    answer = await create_session(portico.client, "script", *past, "And?", options=options, tools=[WEATHER])
    assert answer["messages"][-1]["content"] == "here"
    messages = await get_history(portico.client, answer["sessionId"])
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(("method", "asleep"), [("start", False), ("resume", True)], ids=["prompt", "answers of a suspended run"])
async def test_a_native_session_that_has_what_is_not_stored_is_not_resumed(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch, method: str, asleep: bool
) -> None:
    session = await create_waiting_session(portico, write_scenario)
    submission = Submission(message=HELLO)
    if asleep:
        await suspend(session)
        submission = Submission(replies=[ToolReply("sky", "sun")])
    store = portico.gateway.store
    await store.sessions.update(session.id, native_id="native")
    session._agent._native_id = "native"
    live = session.live

    async def failing(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(store.runs, method, failing)
        with pytest.raises(OSError, match="disk full"):
            await session.submit(submission)
    await session._agent.native_id_stored()
    record = await store.sessions.get(session.id)
    # A prompt that is not stored is not given to the agent. A resumed agent has the answers in its history.
    assert record is not None and record.native_id == (None if asleep else "native")
    assert session.live is (None if asleep else live)
    assert (await send_turn(portico.client, session.id, "And?"))["messages"][-1]["content"] == "here"


async def test_an_agent_whose_exit_is_not_noticed_yet_is_replaced(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is notified of an exit a little later than the process ends; the prompt finds it by a system call."""
    name = write_scenario({"when": "again", "steps": [{"text": "here"}]}, [{"text": "a"}])
    created = await create_session(portico.client, "script", options={"scenario": name})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, created["sessionId"])
    first = session.live
    assert isinstance(first, CliAgent)
    monkeypatch.setattr("drivers.runtime.process.child_runs", lambda pid: pid != first.pid)
    assert first.alive
    assert (await send_turn(portico.client, session.id, "again"))["messages"][-1]["content"] == "here"
    assert session.live is not first
    roles = [message["role"] for message in await get_history(portico.client, session.id)]
    assert roles == ["user", "assistant", "user", "assistant"]
