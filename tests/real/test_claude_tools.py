"""Tools with the real claude: the flows of the protocol, pending calls, and the results that the model receives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model_server.scenarios import Step, Text, ToolUse, text_step
from tests.real.tool_bench import CLOCK, WEATHER, Bench, bash, clock, deny, grant, result, weather


async def test_an_application_side_call(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(Text("Asking. "), weather(location="Tokyo"), after="Mild."), app=[WEATHER])
    assert (turn.called, turn.results, turn.stop) == (["get_weather"], {}, "tool_use")
    [call] = turn.calls

    turn_2 = await bench.answer(turn.session, result(call, "18 degrees"))
    assert (turn_2.called, turn_2.results, turn_2.text, turn_2.stop) == ([], {}, "Mild.", "end_turn")
    assert bench.results_sent()[call]["content"] == [{"type": "text", "text": "18 degrees"}]
    assert await bench.history(turn.session) == [
        {"role": "user", "content": "go [[calls]]"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Asking. "},
                {"type": "tool_use", "toolCallId": call, "name": "get_weather", "input": {"location": "Tokyo"}},
            ],
        },
        {"role": "tool", "toolCallId": call, "content": "18 degrees"},
        {"role": "assistant", "content": "Mild."},
    ]


async def test_a_trusted_call_runs_in_the_turn(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(bash(f"touch {bench.work}/made && echo made")), own={"Bash": True})
    [call] = turn.calls
    assert (turn.results, turn.text, turn.stop) == ({call: "made"}, "Done.", "end_turn")
    assert (bench.work / "made").exists()


async def test_a_trusted_call_that_fails(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(bash("ls /nonexistent-dir; exit 3")), own={"Bash": True})
    [call] = turn.calls
    assert "Exit code 3" in turn.results[call] and "nonexistent-dir" in turn.results[call]
    assert (turn.text, turn.stop) == ("Done.", "end_turn")
    assert bench.results_sent()[call]["is_error"] is True


async def test_an_output_of_a_megabyte_is_cut_by_the_cli_and_the_turn_ends(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(bash("head -c 1000000 /dev/zero | tr '\\0' A")), own={"Bash": True})
    [call] = turn.calls
    assert "AAAA" in turn.results[call] and len(turn.results[call]) < 100_000
    assert (turn.text, turn.stop) == ("Done.", "end_turn")


@pytest.mark.parametrize("granted", [True, False])
async def test_an_untrusted_call_waits_for_a_permission(bench: Bench, granted: bool) -> None:
    turn = await bench.start(bench.model_calls(bash(f"touch {bench.work}/made && echo made")), own={"Bash": False})
    [call] = turn.calls
    assert (turn.results, turn.stop) == ({}, "tool_use")
    assert not (bench.work / "made").exists()

    turn_2 = await bench.answer(turn.session, grant(call) if granted else deny(call, "not today"))
    expected = "made" if granted else "Tool call denied: not today"
    assert (turn_2.results, turn_2.text, turn_2.stop) == ({call: expected}, "Done.", "end_turn")
    assert (bench.work / "made").exists() == granted
    history = await bench.history(turn.session)
    assert history[2] == {"role": "tool", "toolCallId": call, "content": expected}
    sent = bench.results_sent()[call]
    assert (expected in sent["content"], sent["is_error"]) == (True, not granted)


async def test_a_denial_without_a_reason(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(bash("echo hi")), own={"Bash": False})
    [call] = turn.calls
    assert (await bench.answer(turn.session, deny(call))).results == {call: "Tool call denied"}


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


async def test_one_answer_for_calls_whose_permissions_the_cli_requests_one_by_one(bench: Bench) -> None:
    text = bench.model_calls(bash("touch a && echo 1"), bash("touch b && echo 2"), weather(), bash("touch c && echo 3"))
    turn = await bench.start(text, own={"Bash": False}, app=[WEATHER])
    one, two, app, three = turn.calls
    turn_2 = await bench.answer(turn.session, deny(two), grant(three), result(app, "rain"), grant(one))
    assert turn_2.results == {one: "1", two: "Tool call denied", three: "3"} and turn_2.stop == "end_turn"
    assert sorted(path.name for path in bench.work.iterdir()) == ["a", "c"]


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


async def test_several_rounds_and_a_next_message(bench: Bench) -> None:
    steps = Step((weather(n=1),)), Step((weather(n=2), bash("echo two"))), text_step("Both.")
    turn = await bench.start(bench.model_replies(*steps), own={"Bash": True}, app=[WEATHER])
    turn_2 = await bench.answer(turn.session, result(turn.calls[0], "one"))
    assert (turn_2.called, turn_2.stop) == (["get_weather", "Bash"], "tool_use")
    assert turn_2.results == {turn_2.calls[1]: "two"}
    turn_3 = await bench.answer(turn.session, result(turn_2.calls[0], "two"))
    assert (turn_3.text, turn_3.stop) == ("Both.", "end_turn")
    assert "Before this one" in (await bench.send_turn(turn.session, "And?")).text


async def test_tools_are_replaced_for_a_turn(bench: Bench) -> None:
    turn = await bench.start(bench.model_calls(weather()), own={"Bash": True}, app=[WEATHER])
    await bench.answer(turn.session, result(turn.calls[0], "rain"))
    bench.model_calls(clock(), ToolUse("Read", {"file_path": "/etc/hostname"}))
    turn_2 = await bench.send_turn(turn.session, "go [[calls]]", own={"Read": True}, tools=[CLOCK])
    assert turn_2.called == ["get_time", "Read"] and turn_2.stop == "tool_use"
    assert sorted(tool["name"] for tool in bench.model.bodies()[-1]["tools"]) == ["Read", "mcp__app__get_time"]
    turn_3 = await bench.answer(turn.session, result(turn_2.calls[0], "noon"))
    assert turn_3.stop == "end_turn" and len(bench.results_sent()) == 3


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
