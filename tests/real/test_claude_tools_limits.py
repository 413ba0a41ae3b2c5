"""Many calls, large results, images, and pending calls that are cancelled."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.model_server.scenarios import Text, ToolUse
from tests.real.tool_bench import CLOCK, WEATHER, Bench, bash, clock, deny, grant, result, weather

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_twenty_calls_at_once(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(*(weather(n=n) for n in range(20))), app=[WEATHER])
    assert len(turn.calls) == 20 and turn.stop == "tool_use"
    answers = [result(call, f"weather {n}") for n, call in enumerate(turn.calls)]
    turn_2 = await bench.answer(turn.session, *reversed(answers))
    assert turn_2.stop == "end_turn"
    sent = bench.results_sent()
    assert [sent[call]["content"][0]["text"] for call in turn.calls] == [f"weather {n}" for n in range(20)]


async def test_a_result_of_five_megabytes(bench: Bench) -> None:
    big = "Z" * 5_000_000
    turn = await bench.start(bench.model_calls(weather()), app=[WEATHER])
    turn_2 = await bench.answer(turn.session, result(turn.calls[0], big))
    assert turn_2.stop == "end_turn"
    assert (await bench.history(turn.session))[2]["content"] == big
    # The CLI cuts it and gives the model the beginning and the name of a file.
    assert "Output too large (4.8MB)" in json.dumps(bench.results_sent()[turn.calls[0]]["content"])


async def test_a_result_of_400_kilobytes_reaches_the_model_whole(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(weather()), app=[WEATHER])
    await bench.answer(turn.session, result(turn.calls[0], "Z" * 400_000))
    assert bench.results_sent()[turn.calls[0]]["content"] == [{"type": "text", "text": "Z" * 400_000}]


async def test_a_result_with_an_image(bench: Bench) -> None:
    content = [
        {"type": "text", "text": "A picture."},
        {"type": "image", "url": f"data:image/png;base64,{PIXEL}"},
        {"type": "image", "url": "https://example.org/a.png"},
    ]
    turn = await bench.start(bench.model_calls(weather()), app=[WEATHER])
    await bench.answer(turn.session, result(turn.calls[0], content))
    sent = bench.results_sent()[turn.calls[0]]["content"]
    assert sent[0] == {"type": "text", "text": "A picture."}
    assert sent[1]["source"] == {"type": "base64", "media_type": "image/png", "data": PIXEL}
    assert sent[-1] == {"type": "text", "text": "[image: https://example.org/a.png]"}
    assert (await bench.history(turn.session))[2]["content"] == content


@pytest.mark.parametrize("content", ["", []])
async def test_an_empty_result(bench: Bench, content: object) -> None:
    turn = await bench.start(bench.model_calls(weather()), app=[WEATHER])
    assert (await bench.answer(turn.session, result(turn.calls[0], content))).stop == "end_turn"


async def test_an_image_of_the_agents_own_tool(bench: Bench) -> None:
    import base64

    (bench.work / "a.png").write_bytes(base64.b64decode(PIXEL))
    text = bench.model_calls(ToolUse("Read", {"file_path": f"{bench.work}/a.png"}))
    turn = await bench.start(text, own={"Read": True})
    [image] = [block for block in turn.results[turn.calls[0]] if block["type"] == "image"]
    assert image["url"].startswith("data:image/png;base64,")


async def test_a_user_message_cancels_the_pending_calls(bench: Bench) -> None:
    text = bench.model_calls(Text("Now. "), weather(), bash("touch made"), clock())
    turn = await bench.start(text, own={"Bash": False}, app=[WEATHER, CLOCK])
    assert turn.stop == "tool_use"
    turn_2 = await bench.send_turn(turn.session, "Never mind [[plain]]")
    assert turn_2.stop == "end_turn" and turn_2.results == {}
    history = await bench.history(turn.session)
    assert [m["content"] for m in history if m["role"] == "tool"] == ["Tool call cancelled"] * 3
    assert set(bench.results_sent()) == set(turn.calls) and not (bench.work / "made").exists()
    late = await bench.answer(turn.session, *(result(call, "late") for call in turn.calls))
    assert late.status == 400 and all(call in late.error for call in turn.calls)


async def test_a_reply_of_the_wrong_type(bench: Bench) -> None:
    """The client answers an application-side call with a permission, and a call of the agent with a result."""
    turn = await bench.start(bench.model_calls(weather(), bash("touch made")), own={"Bash": False}, app=[WEATHER])
    app, shell = turn.calls
    turn_2 = await bench.answer(turn.session, deny(app, "no network"), result(shell, "I did it myself"))
    assert turn_2.stop == "end_turn" and not (bench.work / "made").exists()
    sent = bench.results_sent()
    assert "Tool call denied: no network" in json.dumps(sent[app]) and "I did it myself" in json.dumps(sent[shell])
    tools = {m["toolCallId"]: m["content"] for m in await bench.history(turn.session) if m["role"] == "tool"}
    assert tools == {app: "Tool call denied: no network", shell: "I did it myself"}


async def test_two_clients_answer_at_once(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(bash("echo x >> log")), own={"Bash": False})
    one, two = await asyncio.gather(*(bench.answer(turn.session, grant(turn.calls[0])) for _ in range(2)))
    assert sorted([one.status, two.status]) == [200, 400] and "already" in one.error + two.error
    assert (bench.work / "log").read_text() == "x\n"
