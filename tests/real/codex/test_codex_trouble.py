"""Failures with the real codex: errors of the model, broken streams, interrupts, and killed processes."""

from __future__ import annotations

import shutil
import time

import pytest

from drivers.contract.messages import UserMessage
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Submission
from tests.model_server.openai import OpenAIServer
from tests.real.codex.aap_client import create_session, user
from tests.real.codex.conftest import Home
from tests.real.processes import cli_of, running_process, wait_for_exit
from tests.support.daemon import RunningGateway
from tests.support.waiting import wait_until

PLAIN = "Hello from the model, this is plain text."


@pytest.mark.parametrize(
    ("scenario", "stop", "reported", "seconds"),
    [
        ("e400", "error", "bad request", 10),
        ("e401", "error", "401 Unauthorized", 5),
        ("e429", "error", "429 Too Many Requests", 20),
        ("e500", "error", "high demand", 20),
        ("maxtok", "max_tokens", None, 10),
        ("refusal", "refusal", None, 30),
    ],
)
async def test_errors_of_the_model(
    portico: RunningGateway, scenario: str, stop: str, reported: str | None, seconds: float
) -> None:
    aap = await create_session(portico.client, "[[plain]]")
    before = time.monotonic()
    answer = await aap.send(f"[[{scenario}]]")
    assert time.monotonic() - before < seconds
    assert answer["stopReason"] == stop
    assert (reported in answer["x-portico"]["error"]) if reported else "error" not in answer.get("x-portico", {})
    assert await aap.send_turn("[[plain]] again") == PLAIN


async def test_a_retried_stream_gives_its_text_once(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[cutonce]]")
    assert (await aap.history())[-1] == {"role": "assistant", "content": "Whole on the second try."}


async def test_a_wrong_setting_fails_the_session_creation(home: Home) -> None:
    (home.codex / "config.toml").write_text('model_provider = "nowhere"\n')
    async with home.gateway() as running:
        answer = await running.client.put("/session", json={"agent": {"name": "codex"}, "messages": [user("x")]})
    assert answer.status_code >= 500 and "nowhere" in answer.text


async def test_an_interrupt_in_the_text(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[plain]]")
    process = cli_of(home.path)
    session = await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)
    async with aap.open_stream("[[slowtext]]") as frames:
        seen = 0
        async for name, _ in frames:
            seen += name == "text_delta"
            if seen == 3:
                await session.run.cancel()
        assert name == "turn_stop"
    assert (await portico.gateway.store.runs.last(aap.id)).stop_reason == "cancelled"
    assert await aap.send_turn("[[plain]]") == PLAIN
    assert cli_of(home.path) == process


async def test_an_interrupt_before_the_turn_has_begun(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]]")
    session = await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)
    await session.submit(Submission(message=UserMessage(content="[[slowtext]]")))
    before = time.monotonic()
    await session.run.cancel()
    assert time.monotonic() - before < 10
    assert await aap.send_turn("[[plain]]") == PLAIN


async def test_an_interrupt_in_a_command_ends_the_command(home: Home) -> None:
    async with home.gateway(limits={"grace": 10.0}) as running:
        aap = await create_session(running.client, "[[plain]]", own={"shell": True, "apply_patch": True})
        process = cli_of(home.path)
        session = await running.gateway.sessions.get(ADMINISTRATOR, aap.id)
        async with aap.open_stream("[[longshell]]") as frames:
            assert [(await anext(frames))[0] for _ in range(2)] == ["turn_start", "tool_call"]
            sleeper = await running_process(home.path, "python")
            await session.run.cancel()
            assert [name async for name, _ in frames][-1] == "turn_stop"
        await wait_for_exit(sleeper.pid)
        assert cli_of(home.path) == process
        assert await aap.send_turn("[[plain]]") == PLAIN
        (result,) = [m for m in await aap.history() if m["role"] == "tool"]
        assert result["content"] == "Tool call cancelled"


async def test_a_cli_that_is_killed_in_the_middle_of_a_turn(portico: RunningGateway, home: Home, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[plain]] one")
    async with aap.open_stream("[[slowtext]]") as frames:
        async for name, _ in frames:
            if name == "text_delta":
                cli_of(home.path).kill()
                break
        *_, (name, data) = [frame async for frame in frames]
    assert (name, data["stopReason"]) == ("turn_stop", "error")
    assert (await aap.send_turn("[[recall]]")).startswith("I see 3 user texts. Before this one: [[plain]] one | [[slowtext]]")


async def test_a_cli_that_is_killed_between_turns(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[plain]] one")
    process = cli_of(home.path)
    process.kill()
    session = await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)
    await wait_until(lambda: not session.live.alive, "its exit is detected")
    assert await aap.send_turn("[[recall]]") == "I see 2 user texts. Before this one: [[plain]] one"


async def test_a_deleted_native_thread_is_seeded_from_the_history(
    portico: RunningGateway, home: Home, model: OpenAIServer
) -> None:
    aap = await create_session(portico.client, "[[think]] one")
    await aap.send_turn("[[plain]] two")
    process = cli_of(home.path)
    process.kill()
    session = await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)
    await wait_until(lambda: not session.live.alive, "its exit is detected")
    for found in home.codex.iterdir():
        if found.name != "config.toml":
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    assert await aap.send_turn("[[recall]]") == "I see 3 user texts. Before this one: [[think]] one | [[plain]] two"
    assert [i["role"] for i in model.bodies()[-1]["input"] if i.get("role") != "developer"].count("assistant") == 2


async def test_a_session_may_begin_with_a_history(portico: RunningGateway, model: OpenAIServer) -> None:
    call = {"type": "tool_use", "toolCallId": "c1", "name": "get_weather", "input": {"location": "Tokyo"}}
    history = [
        user("the weather?"),
        {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, call]},
        {"role": "tool", "toolCallId": "c1", "content": "18 degrees"},
        {"role": "assistant", "content": "It is mild."},
    ]
    aap = await create_session(portico.client, *history, user("[[recall]]"))
    assert aap.first["messages"][0]["content"] == "I see 2 user texts. Before this one: the weather?"
    sent = [(i.get("role") or i["type"]) for i in model.bodies()[-1]["input"] if "<environment_context>" not in str(i)]
    assert sent[-6:] == ["user", "assistant", "function_call", "function_call_output", "assistant", "user"]


async def test_a_session_is_resumed_after_the_daemon_was_killed(home: Home) -> None:
    daemon = await home.daemon()
    async with daemon.client() as client:
        aap = await create_session(client, "[[plain]] one")
    process = cli_of(home.path)
    await daemon.kill()
    daemon = await home.daemon()
    await wait_for_exit(process.pid)
    async with daemon.client() as client:
        again = aap.with_client(client)
        assert await again.send_turn("[[recall]]") == "I see 2 user texts. Before this one: [[plain]] one"
        assert len(home.threads()) == 1
    assert await daemon.stop() == 0
