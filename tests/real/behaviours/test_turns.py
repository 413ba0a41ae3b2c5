"""Turns of the real CLIs: streams, a warm process, prompts and images as they were written, histories, errors of the model."""

from __future__ import annotations

import json
import time

import pytest

from tests.real.aap_client import frames_of
from tests.real.processes import arguments
from tests.real.real_cli import PIXEL, PLAIN, RealCli
from tests.support.requests import joined_text, user_message
from tests.support.sse import Frame
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

THOUGHT, ANSWER = "Let me think about this carefully.", "The answer is 42."
ERROR_SECONDS = 60.0


def check_stop(cli: RealCli, frame: Frame) -> None:
    name, data = frame
    usage = data["x-portico"]["usage"]
    assert (name, data["stopReason"], {key: usage[key] for key in cli.used}) == ("turn_stop", "end_turn", cli.used)


async def test_deltas(cli: RealCli) -> None:
    body = {"agent": {"name": cli.name}, "messages": [user_message("[[think]] hello")], "stream": "delta"}
    async with frames_of(cli.client, "PUT", "/session", body) as source:
        frames = [frame async for frame in source]
    names = [name for name, _ in frames]
    thinking, text = names.count("thinking_delta"), names.count("text_delta")
    assert names == ["session_start", "turn_start", *["thinking_delta"] * thinking, *["text_delta"] * text, "turn_stop"]
    assert thinking and text > 1
    assert THOUGHT in joined_text(frames, "thinking_delta") and joined_text(frames, "text_delta") == ANSWER
    check_stop(cli, frames[-1])
    assert (await cli.client.get("/sessions")).json()["sessions"] == [frames[0][1]["sessionId"]]


async def test_whole_messages(cli: RealCli) -> None:
    session = await cli.create("[[plain]] hello")
    assert (session.first.text, session.first.stop) == (PLAIN, "end_turn")
    *frames, stop = await session.frames("[[think]] again", "message")
    assert [name for name, _ in frames] == ["turn_start", "thinking", "text"]
    assert THOUGHT in frames[1][1]["thinking"] and frames[2][1] == {"text": ANSWER}
    check_stop(cli, stop)
    info = await session.info()
    assert (info["state"], info["stopReason"]) == ("idle", "end_turn")
    *_, asked, answered = info["history"]["full"]
    assert asked == user_message("[[think]] again")
    assert [block["type"] for block in answered["content"]] == ["thinking", "text"]


async def test_a_session(cli: RealCli) -> None:
    """It is created with a prompt, and has the model's answer."""
    assert (await cli.create("[[plain]]")).first.text == PLAIN


async def test_a_warm_process_keeps_the_context(cli: RealCli) -> None:
    session = await cli.create("[[plain]] one")
    other = await cli.create("[[plain]] of another session")
    await cli.client.delete(f"/session/{other.id}")
    await wait_until(lambda: len(cli.processes()) == 1, "the process of the deleted session has ended")
    process = cli.process()
    await session.say("[[think]] two")
    recalled = await session.say("[[recall]] three")
    assert recalled == "I see 3 user texts. Before this one: [[plain]] one | [[think]] two"
    assert cli.process() == process
    assert cli.texts("user") == ["[[plain]] one", "[[think]] two", "[[recall]] three"]
    assert cli.texts("assistant") == [PLAIN, ANSWER]
    assert [message["role"] for message in await session.history()] == ["user", "assistant"] * 3


async def test_prompts_are_literal(cli: RealCli) -> None:
    (cli.work / "file.txt").write_text("the file's words")
    session = await cli.create("[[plain]] before")
    process = cli.process()
    for prompt in cli.prompts:
        await session.say(prompt)
        assert cli.texts("user")[-1] == prompt
        assert "the file's words" not in cli.request_text()
    assert cli.texts("user") == ["[[plain]] before", *cli.prompts], "none was a command that changed the conversation"
    assert cli.process() == process


async def test_a_prompt_and_an_answer_of_a_megabyte(cli: RealCli) -> None:
    prompt = ("[[bigtext]] " + "0123456789abcde\n" * 65536)[: 1024 * 1024 - 1] + "."
    session = await cli.create(prompt)
    assert cli.texts("user") == [prompt]
    assert session.first.text == "X" * 1_200_000
    frames = await session.frames("[[bigtext]]")
    assert joined_text(frames, "text_delta") == "X" * 1_200_000
    assert (await session.history())[-1]["content"] == "X" * 1_200_000


async def test_an_image(cli: RealCli) -> None:
    image = {"type": "image", "url": f"data:image/png;base64,{PIXEL}"}
    await cli.create(user_message([{"type": "text", "text": "[[plain]] look"}, image]))
    assert cli.request_text().count(PIXEL) == 1
    assert "[[plain]] look" in cli.texts("user")


async def test_a_system_prompt_is_appended_or_replaces_the_clis(cli: RealCli) -> None:
    told = {"role": "system", "content": "Speak like a sailor, always. Zanzibar."}
    for how in ("append", "replace"):
        session = await cli.create(told, "[[plain]] hello", system_prompt=how)
        for _ in range(2):
            assert cli.system().count("Zanzibar") == 1
            assert (cli.own_words in cli.system()) == (how == "append")
            await cli.end_process()
            await session.say("[[plain]] again")
        assert cli.texts("user") == ["[[plain]] hello", *["[[plain]] again"] * 2]
        assert (await session.history())[0] == told
        await cli.clean()


async def test_a_model_and_a_key_of_a_session(cli: RealCli) -> None:
    first, second = cli.models
    session = await cli.create("[[plain]] hello", model=first, api_key="s3cret-key-0123456789")
    assert cli.model_of(cli.last_request()) == first
    session_info = await session.info()
    assert session_info["agent"]["options"]["api_key"] == "***"
    recalled = await session.say("[[recall]]", agent={"options": {"model": second, "api_key": "***"}})
    assert recalled == "I see 2 user texts. Before this one: [[plain]] hello"
    assert cli.model_of(cli.last_request()) == second
    files = [path for path in cli.base.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if b"s3cret-key" in path.read_bytes()] == []


async def test_ps_shows_neither_prompts_nor_keys(cli: RealCli) -> None:
    told = {"role": "system", "content": "quagga-of-the-system"}
    seed = [user_message("xylophone-of-the-seed"), {"role": "assistant", "content": "Yes."}]
    session = await cli.create(told, *seed, "[[plain]] zebra-of-the-prompt", api_key="s3cret-key-0123456789")
    async with session.stream(f"{cli.long_text} zebra-of-the-prompt") as frames:
        await anext(frames)
        shown = " ".join(arguments(cli.process()))
        await session.cancel()
    assert shown
    for word in ("xylophone", "quagga", "zebra", "s3cret", "dummy"):
        assert word not in shown


async def test_a_session_begins_with_a_history(cli: RealCli) -> None:
    call = {"type": "tool_use", "toolCallId": "toolu_given_1", "name": "get_weather", "input": {"location": "Bergen"}}
    seed = [
        user_message("-How is the weather in Bergen?"),
        {"role": "assistant", "content": [{"type": "text", "text": "I shall look."}, call]},
        {"role": "tool", "toolCallId": "toolu_given_1", "content": "Rain and 7 degrees"},
        {"role": "assistant", "content": "It rains there."},
        user_message("/Really?"),
        {"role": "assistant", "content": "Yes."},
    ]
    session = await cli.create(*seed, "[[recall]] now")
    assert session.first.text == "I see 3 user texts. Before this one: -How is the weather in Bergen? | /Really?"
    parts = [
        "-How is the weather in Bergen?",
        "I shall look.",
        "get_weather",
        "Rain and 7 degrees",
        "It rains there.",
        "/Really?",
    ]
    assert places(cli, *parts) == sorted(places(cli, *parts))
    assert len(cli.requests()) == 1
    assert (await session.history())[:-1] == [*seed, user_message("[[recall]] now")]
    await cli.end_process()
    await session.say("[[recall]] again")
    assert places(cli, *parts) == sorted(places(cli, *parts))


def places(cli: RealCli, *parts: str) -> list[int]:
    """Where these texts are in the newest model request."""
    return [cli.request_text().index(part) for part in parts]


async def test_an_error_of_the_model_ends_the_turn_and_not_the_session(cli: RealCli) -> None:
    session = await cli.create("[[e401]] first")
    assert (session.first.stop, cli.errors["e401"] in session.first.error) == ("error", True)
    assert await session.say("[[plain]] before") == PLAIN
    process = cli.process()
    for scenario, reported in cli.errors.items():
        began = time.monotonic()
        turn = await session.send(f"[[{scenario}]]")
        assert time.monotonic() - began < ERROR_SECONDS, scenario
        assert turn.stop == "error" and turn.error.startswith(f"{cli.name}: ") and reported in turn.error, scenario
        assert (await session.info())["stopReason"] == "error"
        assert await session.say("[[plain]] after") == PLAIN, scenario
    assert cli.process() == process


async def test_an_answer_that_the_model_breaks_off(cli: RealCli) -> None:
    session = await cli.create("[[plain]] before")
    for scenario, stop in cli.stops.items():
        turn = await session.send(f"[[{scenario}]] now")
        assert turn.stop == stop, (scenario, turn.error)
        assert (await session.info())["stopReason"] == stop
        assert await session.say("[[plain]] after") == PLAIN


async def test_a_stream_that_broke_is_repeated_and_its_text_is_there_once(cli: RealCli) -> None:
    if not cli.repeats:
        pytest.skip("it takes for the answer what came of it")
    session = await cli.create("[[plain]] before")
    frames = await session.frames("[[cutonce]] now", "message")
    assert frames[:-1] == [("turn_start", {}), ("text", {"text": "Whole on the second try."})]
    frames = await session.frames("[[cutonce]] again")
    # Deltas before the break are sent already; the whole answer follows.
    assert joined_text(frames, "text_delta").endswith("Whole on the second try.")
    assert [message["content"] for message in (await session.history())[1::2]] == [PLAIN, *["Whole on the second try."] * 2]
    await session.say("[[recall]]")
    assert cli.texts("assistant") == [PLAIN, *["Whole on the second try."] * 2]


async def test_the_usage_of_a_session_and_of_each_turn(cli: RealCli) -> None:
    session = await cli.create("[[plain]] one")
    before = (await session.info())["usage"]
    turn = await session.send("[[usage]] two")
    of_turn = turn.body["x-portico"]["usage"]
    cached = 200 if cli.used["cacheReadTokens"] else 0
    assert (of_turn["inputTokens"], of_turn["cacheReadTokens"], of_turn["outputTokens"]) == (1000, cached, 40)
    after = (await session.info())["usage"]
    assert {key: after[key] - before[key] for key in ("inputTokens", "outputTokens")} == {"inputTokens": 1000, "outputTokens": 40}


async def test_meta_lists_the_cli(cli: RealCli) -> None:
    [agent] = [found for found in (await cli.client.get("/meta")).json()["agents"] if found["name"] == cli.name]
    assert agent["version"] == cli.version()
    assert {cli.shell} <= {tool["name"] for tool in agent["tools"]}
    assert "data" in agent["capabilities"]["image"] and "tools" in agent["capabilities"]["application"]
    defaults = {option["name"]: option["default"] for option in agent["options"]}
    assert (await cli.create("[[plain]]", **defaults)).first.text == PLAIN, "each default can be sent back"
    states = [state for driver in (await cli.client.get("/v1/drivers")).json()["drivers"] for state in driver["agents"]]
    [state] = [state for state in states if state["name"] == cli.name]
    assert (state["version"], state["problem"]) == (cli.version(), None) and state["models"], json.dumps(state)
