"""Turns with the real claude: slash commands, and the usage while a turn goes on."""

from __future__ import annotations

from tests.real.aap_client import create_session, frames_of, text_of, user
from tests.real.conftest import Home
from tests.real.models import Model, message_texts
from tests.support.daemon import RunningGateway

USED = {"inputTokens": 100, "outputTokens": 42, "cacheReadTokens": 7, "cacheWriteTokens": 0}


async def test_blocks_of_text_reach_the_model_as_blocks(portico: RunningGateway, model: Model) -> None:
    parts = ["/compact first ", "- second [[plain]]"]
    await create_session(portico.client, user([{"type": "text", "text": text} for text in parts]))
    assert [text.removeprefix("\n") for text in message_texts(model.last_request(), "user")] == parts


async def test_slash_commands_run_if_the_option_is_on(portico: RunningGateway, home: Home, model: Model) -> None:
    command = home.path / ".claude" / "commands" / "greet.md"
    command.parent.mkdir(parents=True)
    command.write_text("[[echo:a command]] Greet $ARGUMENTS.\n")
    aap = await create_session(portico.client, "/greet the world", slash_commands="on")
    assert text_of(aap.first["messages"]) == "a command"
    assert "[[echo:a command]] Greet the world." in "".join(message_texts(model.last_request(), "user"))
    assert "I see" in await aap.send_turn("/greet the world", agent={"options": {"slash_commands": "off"}})


async def test_the_output_of_a_slash_command_is_the_answer(portico: RunningGateway, model: Model) -> None:
    aap = await create_session(portico.client, "[[plain]] before", slash_commands="on")
    answer = await aap.send_turn("/cost")
    assert "Estimated cost" in answer
    assert text_of((await aap.history())[-1:]) == answer
    assert len(model.bodies()) == 1


async def test_the_usage_is_reported_while_the_turn_goes(portico: RunningGateway, model: Model) -> None:
    aap = await create_session(portico.client, "[[plain]] hello")
    before = (await aap.info())["usage"]
    body = {"messages": [user("[[bash]]")], "stream": "delta", "agent": {"tools": [{"name": "Bash", "trust": True}]}}
    async with frames_of(portico.client, "POST", f"/session/{aap.id}", body) as source:
        frames = [frame async for frame in source]
    [result] = [data for name, data in frames if name == "tool_result"]
    assert result["x-portico"]["usage"] == USED
    stop = frames[-1][1]["x-portico"]
    assert stop["usage"]["inputTokens"] == 200 and stop["usage"]["costUsd"] > 0
    assert stop["context"]["used"] == 149 and stop["context"]["size"] > 100_000
    after = (await aap.info())["usage"]
    assert {name: after[name] - before[name] for name in USED} == {name: stop["usage"][name] for name in USED}


async def test_a_turn_that_waits_has_the_usage_of_its_message(portico: RunningGateway, model: Model) -> None:
    aap = await create_session(portico.client, "[[plain]] hello")
    *_, (name, stop) = await aap.stream_turn("[[bash]]", agent={"tools": [{"name": "Bash"}]})
    assert (name, stop["stopReason"], stop["x-portico"]["usage"]) == ("turn_stop", "tool_use", USED)
