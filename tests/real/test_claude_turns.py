"""Turns with the real claude: the three stream modes, a warm process, and literal prompts."""

from __future__ import annotations

import json
from typing import Any

from tests.real.aap_client import create_session, frames_of, joined, text_of, user
from tests.real.conftest import Home
from tests.real.models import Model, message_texts
from tests.real.processes import cli_of
from tests.support.daemon import RunningGateway

PLAIN = "Hello from the model, this is plain text."
THOUGHT, ANSWER = "Let me think about this carefully.", "The answer is 42."
PROMPTS = (
    "-p --model x",
    "--help [[plain]]",
    "/help",
    "/clear",
    "/clear\n[[plain]]",
    "@/etc/hostname",
    "@file.txt",
    "read @file.txt [[plain]]",
    "look at @/etc/hostname [[plain]]",
    "! ls",
    "# heading",
    '{"type": "user"}',
    "tab\tand \\n and \u2028 and \U0001f600",
)

USED = {"inputTokens": 100, "outputTokens": 42, "cacheReadTokens": 7, "cacheWriteTokens": 0}


def check_stop(frame: tuple[str, dict[str, Any]]) -> None:
    """Check the last frame of a turn. The CLI has the price of its model."""
    name, data = frame
    usage = data["x-portico"]["usage"]
    assert usage.pop("costUsd") > 0
    assert (name, data["stopReason"], usage) == ("turn_stop", "end_turn", USED)


async def test_a_session_is_created_by_a_delta_stream(portico: RunningGateway) -> None:
    body = {"agent": {"name": "claude"}, "messages": [user("[[think]] hello")], "stream": "delta"}
    async with frames_of(portico.client, "PUT", "/session", body) as source:
        frames = [frame async for frame in source]
    names = [name for name, _ in frames]
    thinking, text = names.count("thinking_delta"), names.count("text_delta")
    assert names == ["session_start", "turn_start", *["thinking_delta"] * thinking, *["text_delta"] * text, "turn_stop"]
    assert thinking > 1 and text > 1
    assert joined(frames, "thinking_delta", "delta") == THOUGHT
    assert joined(frames, "text_delta", "delta") == ANSWER
    check_stop(frames[-1])
    listed = (await portico.client.get("/sessions")).json()["sessions"]
    assert listed == [frames[0][1]["sessionId"]]


async def test_whole_messages_by_message_mode(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]] hello")
    *frames, stop = await aap.stream_turn("[[think]] again", "message")
    assert frames == [("turn_start", {}), ("thinking", {"thinking": THOUGHT}), ("text", {"text": ANSWER})]
    check_stop(stop)


async def test_one_answer_by_none_and_in_the_history(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[think]] hello")
    answer = {"role": "assistant", "content": [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]}
    assert aap.first["messages"] == [answer]
    assert await aap.history() == [user("[[think]] hello"), answer]
    info = await aap.info()
    assert (info["state"], info["stopReason"]) == ("idle", "end_turn")


async def test_three_turns_in_one_warm_process_keep_the_context(portico: RunningGateway, home: Home, model: Model) -> None:
    aap = await create_session(portico.client, "[[plain]] one")
    first = cli_of(home.path)
    await aap.send_turn("[[think]] two")
    assert await aap.send_turn("[[recall]] three") == "I see 3 user texts. Before this one: [[plain]] one | [[think]] two"
    assert cli_of(home.path) == first
    sent = [(m["role"], m["content"]) for m in model.last_request()["messages"] if m["role"] != "system"]
    assert [role for role, _ in sent] == ["user", "assistant"] * 2 + ["user"]
    assert message_texts(model.last_request(), "user") == ["[[plain]] one", "[[think]] two", "[[recall]] three"]
    assert message_texts(model.last_request(), "assistant") == [PLAIN, ANSWER]
    assert [len(message_texts(body, "user")) for body in model.bodies()] == [1, 2, 3]
    assert [message["role"] for message in await aap.history()] == ["user", "assistant"] * 3


async def test_two_sessions_are_independent(portico: RunningGateway, model: Model) -> None:
    one = await create_session(portico.client, "[[plain]] one")
    await create_session(portico.client, "[[plain]] two")
    assert await one.send_turn("[[recall]]") == "I see 2 user texts. Before this one: [[plain]] one"


async def test_an_answer_of_more_than_a_megabyte_is_complete(portico: RunningGateway) -> None:
    whole = "X" * 1_200_000
    aap = await create_session(portico.client, "[[bigtext]]")
    assert text_of(aap.first["messages"]) == whole
    frames = await aap.stream_turn("[[bigtext]] again", "message")
    assert ("text", {"text": whole}) in frames and len(frames) == 3
    assert joined(await aap.stream_turn("[[bigtext]] again"), "text_delta", "delta") == whole
    assert text_of((await aap.history())[-1:]) == whole


async def test_a_prompt_of_a_megabyte_reaches_the_model_whole(portico: RunningGateway, model: Model) -> None:
    prompt = "[[plain]] " + "0123456789abcde\n" * 65536 + "end"
    await create_session(portico.client, prompt)
    assert message_texts(model.last_request(), "user") == [prompt]


async def test_prompts_reach_the_model_as_they_were_written(portico: RunningGateway, home: Home, model: Model) -> None:
    (home.work / "file.txt").write_text("the file's words")
    aap = await create_session(portico.client, "[[plain]] before")
    process = cli_of(home.path)
    for prompt in PROMPTS:
        await aap.send_turn(prompt)
        assert "the file's words" not in json.dumps(model.last_request())
        sent = message_texts(model.last_request(), "user")[-1]
        # The line break that keeps `/` from being a command is all that may be added.
        assert sent == ("\n" + prompt if prompt.startswith("/") else prompt)
    assert len(message_texts(model.last_request(), "user")) == 1 + len(PROMPTS), (
        "none of them was a command that changed the conversation"
    )
    assert cli_of(home.path) == process
    assert [m["content"] for m in await aap.history() if m["role"] == "user"] == ["[[plain]] before", *PROMPTS]


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
