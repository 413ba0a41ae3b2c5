"""Tools with the real claude: the flows of the protocol, pending calls, and the results that the model receives."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from tests.model_server.scenarios import ToolUse
from tests.real.tool_bench import CLOCK, WEATHER, Bench, bash, clock, deny, grant, result, weather
from tests.support.daemon import run_gateway

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_four_calls_in_one_message(bench: Bench) -> None:
    """The protocol's own example: two application-side, one trusted, one untrusted."""
    (bench.work / "file.txt").write_text("a text")
    text = bench.model_calls(
        weather(location="Tokyo"),
        clock(zone="Asia"),
        ToolUse("Read", {"file_path": f"{bench.work}/file.txt"}),
        bash(f"touch {bench.work}/made && echo made"),
    )
    turn = await bench.start(text, own={"Read": True, "Bash": False}, app=[WEATHER, CLOCK])
    assert turn.called == ["get_weather", "get_time", "Read", "Bash"]
    first, second, read, shell = turn.calls
    assert list(turn.results) == [read] and "a text" in turn.results[read]
    assert [name for name, _ in turn.events][-2:] == ["tool_result", "turn_stop"] and turn.stop == "tool_use"
    assert not (bench.work / "made").exists()

    missing = await bench.answer(turn.session, result(first, "rain"), grant(shell))
    assert missing.status == 400 and second in missing.error and first not in missing.error
    turn_2 = await bench.answer(turn.session, grant(shell), result(second, "noon"), result(first, "rain"))
    assert (turn_2.results, turn_2.text, turn_2.stop) == ({shell: "made"}, "Done.", "end_turn")
    assert set(bench.results_sent()) == {first, second, read, shell}


@pytest.mark.parametrize("answered", ["not at all", "granted", "denied"])
async def test_a_trusted_call_behind_one_that_waits(bench: Bench, answered: str) -> None:
    """The CLI runs it only after the other: it is pending at the stop, and an answer is optional."""
    text = bench.model_calls(bash("touch a && echo 1"), ToolUse("Write", {"file_path": f"{bench.work}/b", "content": "x"}))
    turn = await bench.start(text, own={"Bash": False, "Write": True})
    first, second = turn.calls
    assert (turn.results, turn.stop) == ({}, "tool_use")
    more = {"not at all": [], "granted": [grant(second)], "denied": [deny(second)]}[answered]
    turn_2 = await bench.answer(turn.session, grant(first), *more)
    assert list(turn_2.results) == [first, second] and turn_2.stop == "end_turn"
    assert (bench.work / "b").exists() == (answered != "denied")


async def test_the_calls_of_a_subagent_need_permission(bench: Bench) -> None:
    bench.model_calls(bash("touch inner && echo inner"), weather(), after="Inner done.", name="inner")
    task = {"description": "sub", "prompt": "go [[inner]]", "subagent_type": "general-purpose"}
    text = bench.model_calls(ToolUse("Agent", task))
    turn = await bench.start(text, own={"Agent": True, "Bash": False}, app=[WEATHER])
    assert turn.called[0] == "Agent" and turn.called[1:] == ["Bash", "get_weather"] and turn.stop == "tool_use"
    agent, shell, app = turn.calls
    assert not (bench.work / "inner").exists()
    last = [m for m in await bench.history(turn.session) if m["role"] == "assistant"][-1]
    assert [block["toolCallId"] for block in last["content"]] == [shell, app]

    turn_2 = await bench.answer(turn.session, deny(shell, "no"), result(app, "rain"))
    assert turn_2.results[shell] == "Tool call denied: no" and agent in turn_2.results and turn_2.stop == "end_turn"
    assert not (bench.work / "inner").exists()


async def test_invalid_tool_names_are_mapped(bench: Bench) -> None:
    tools = [
        {"name": "wetter.in:Köln", "title": "Wetter", "description": "x", "inputSchema": {"properties": {"tag": {}}}},
        {"name": "wetter in Köln", "description": "x", "inputSchema": {"type": "object"}},
        {"name": "w" * 80, "description": "x", "inputSchema": {"type": "object"}},
    ]
    text = bench.model_calls(ToolUse("mcp__app__wetter_in_K_ln", {"tag": 1}), ToolUse("mcp__app__wetter_in_K_ln_2", {}))
    turn = await bench.start(text, app=tools)
    assert turn.called == ["wetter.in:Köln", "wetter in Köln"]
    assert (await bench.answer(turn.session, *(result(call, "ok") for call in turn.calls))).stop == "end_turn"
    assert all(len(tool["name"]) <= 64 for tool in bench.model.bodies()[-1]["tools"])


async def test_a_tool_with_the_name_of_its_own_tool_that_is_off(bench: Bench) -> None:
    assert bench.client is not None
    function = {"name": "Bash", "description": "Runs it elsewhere.", "parameters": {"type": "object"}}
    messages: list[Any] = [{"role": "user", "content": bench.model_calls(ToolUse("mcp__app__Bash", {"command": "ls"}))}]
    body = {"model": "claude", "messages": messages, "tools": [{"type": "function", "function": function}]}
    answer = await bench.client.post("/v1/chat/completions", json=body)
    message = answer.json()["choices"][0]["message"]
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "Bash", "arguments": '{"command":"ls"}'}
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "elsewhere.txt"}]
    rest = await bench.client.post("/v1/chat/completions", json=body)
    assert rest.json()["choices"][0]["message"]["content"] == "Done."
    assert rest.headers["x-portico-session"] == answer.headers["x-portico-session"]
    assert bench.results_sent()[call["id"]]["content"] == [{"type": "text", "text": "elsewhere.txt"}]


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


async def test_an_image_of_the_agents_own_tool(bench: Bench) -> None:
    (bench.work / "a.png").write_bytes(base64.b64decode(PIXEL))
    text = bench.model_calls(ToolUse("Read", {"file_path": f"{bench.work}/a.png"}))
    turn = await bench.start(text, own={"Read": True})
    [image] = [block for block in turn.results[turn.calls[0]] if block["type"] == "image"]
    assert image["url"].startswith("data:image/png;base64,")


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


async def test_rules_apply_to_the_calls_of_a_subagent(unstarted_bench: Bench) -> None:
    bench, config = unstarted_bench, unstarted_bench.config()
    config["agents"]["claude"]["policy"] = [
        {"tool": "Bash", "when": {"command": "touch allowed*"}, "decide": "allow"},
        {"tool": "Bash", "when": {"command": "touch denied*"}, "decide": "deny", "reason": "not permitted here"},
    ]
    bench.model_calls(bash("touch denied"), bash("touch allowed"), name="inner")
    task: dict[str, Any] = {"description": "sub", "prompt": "go [[inner]]", "subagent_type": "general-purpose"}
    async with run_gateway(config) as running:
        running.client.timeout = httpx.Timeout(120)
        bench.client = running.client
        turn = await bench.start(bench.model_calls(ToolUse("Agent", task)), own={"Agent": True, "Bash": True})
    assert (turn.stop, [path.name for path in bench.work.iterdir()]) == ("end_turn", ["allowed"])
