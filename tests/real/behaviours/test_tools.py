"""Tools of the real CLIs: their own, which are trusted, asked about, denied or not listed; and the application's."""

from __future__ import annotations

import json

import pytest

from tests.model_server.scenarios import Step, Text, ToolUse, text_step
from tests.real.aap_client import deny, grant, result
from tests.real.real_cli import CLOCK, PIXEL, PLAIN, RULES, WEATHER, RealCli, Session, Turn
from tests.support.requests import user_message

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_trusted_command_runs_in_the_turn(cli: RealCli) -> None:
    (cli.work / "a-file").touch()
    session = await cli.create(cli.calls(Text("Listing. "), cli.command("ls; echo hi")), own=cli.trust)
    [call] = session.first.calls
    assert call["name"] == cli.shell and call["input"]["command"] == "ls; echo hi"
    assert session.first.results[call["toolCallId"]].split() == ["a-file", "hi"]
    assert [message["role"] for message in session.first.messages] == ["assistant", "tool", "assistant"]
    assert (session.first.text, session.first.stop) == ("Listing. Done.", "end_turn")
    failed = await session.send(cli.runs("ls /nonexistent-dir; exit 3"))
    [output] = failed.results.values()
    assert "nonexistent-dir" in output and cli.exit_code in output and (failed.text, failed.stop) == ("Done.", "end_turn")


async def test_trusted_commands_in_one_message(cli: RealCli) -> None:
    prompt = cli.calls(*(cli.command(f"echo {word} > {word}; echo {word}") for word in ("one", "two", "three")))
    session = await cli.create(prompt, own=cli.trust)
    outputs = [session.first.results[call["toolCallId"]].strip() for call in session.first.calls]
    assert sorted(outputs) == ["one", "three", "two"] and cli.made() == ["one", "three", "two"]


async def test_an_output_of_a_megabyte(cli: RealCli) -> None:
    session = await cli.create(cli.runs("head -c 1000000 /dev/zero | tr '\\0' A"), own=cli.trust)
    [output] = session.first.results.values()
    assert session.first.text == "Done."
    if cli.cuts_output:
        assert "AAAA" in output and len(output) < 100_000
    else:
        assert output.rstrip("\n") == "A" * 1_000_000


async def test_a_permission(cli: RealCli) -> None:
    """A command waits for the client: allowed, it runs; refused, it does not, and the turn goes on to its end."""
    session = await cli.create(cli.runs("touch allowed; echo made"), own=cli.ask)
    [call] = session.first.pending
    assert (call["name"], call["input"]["command"]) == (cli.shell, "touch allowed; echo made")
    assert cli.made() == [], "the command ran before it was allowed"
    allowed = await session.send(grant(call))
    assert ([message["role"] for message in allowed.messages], allowed.stop) == (["tool", "assistant"], "end_turn")
    assert cli.made() == ["allowed"]
    [call] = (await session.send(cli.runs("touch refused"))).pending
    refused = await session.send(deny(call, "too risky"))
    assert (refused.stop, cli.made()) == ("end_turn", ["allowed"])
    assert refused.results[call["toolCallId"]] == cli.denials[0]
    assert cli.denied in cli.request_text()
    assert [message["role"] for message in await session.history()] == ["user", "assistant", "tool", "assistant"] * 2


async def test_each_command_needs_a_permission(cli: RealCli) -> None:
    """A grant is for one call, also of a command that the CLI takes for safe."""
    session = await cli.create(cli.runs("touch made"), own=cli.ask)
    assert (await session.send(grant(session.first.pending[0]))).stop == "end_turn"
    for line in ("touch made", "ls", "cat made"):
        [call] = (await session.send(cli.runs(line))).pending
        assert (await session.send(deny(call))).results[call["toolCallId"]] == cli.denials[1]


async def test_a_permission_to_write_a_file(cli: RealCli) -> None:
    session = await cli.create("[[plain]]", own=cli.ask)
    for granted in (False, True):
        [call] = (await session.send(cli.calls(cli.writing("written.txt")))).pending
        assert (call["name"], cli.made()) == (cli.tools[1], [])
        assert (await session.send(grant(call) if granted else deny(call))).stop == "end_turn"
    assert cli.made() == ["written.txt"]


async def test_permissions_of_several_calls_in_one_message(cli: RealCli) -> None:
    prompt = cli.calls(*(cli.command(f"touch {name} && echo {name}") for name in "abc"))
    turn = (session := await cli.create(prompt, own=cli.ask)).first
    answers = {"touch a && echo a": grant, "touch b && echo b": deny, "touch c && echo c": grant}
    results = {}
    while turn.stop == "tool_use":
        pending = turn.pending
        assert len(pending) == (1 if cli.serial else 3)
        if len(pending) > 1:
            missing = await session.send(grant(pending[0]))
            assert missing.status == 400 and pending[1]["toolCallId"] in missing.error
        turn = await session.send(*(answers[call["input"]["command"]](call) for call in reversed(pending)))
        results |= turn.results
    assert sorted(output.strip() for output in results.values()) == sorted(["a", cli.denials[1], "c"])
    assert cli.made() == ["a", "c"]


async def test_tools_that_are_not_listed_do_not_run(cli: RealCli) -> None:
    prompt = cli.calls(cli.command("touch made"), cli.writing("made.txt"), ToolUse("no_such_tool", {"a": 1}), after="All tried.")
    session = await cli.create(prompt)
    assert (session.first.text, session.first.stop) == ("All tried.", "end_turn")
    assert cli.shell not in cli.offered()
    turn = await session.send(prompt, tools=[WEATHER])
    assert (turn.stop, cli.made()) == ("end_turn", [])
    turn = await session.send(prompt, agent={"tools": [{"name": cli.reading}]})
    assert (turn.stop, cli.made()) == ("end_turn", [])


@pytest.mark.parametrize("trust", [True, False])
async def test_rules_decide(cli: RealCli, trust: bool) -> None:
    own = dict.fromkeys(cli.tools, trust)
    session = await cli.create(cli.runs("touch allowed; touch denied"), own=own, agent=RULES)
    [output] = session.first.results.values()
    assert "not permitted here" in output and cli.made() == []
    assert "not permitted here" in cli.request_text() or cli.serial
    assert (await session.send(cli.runs("touch allowed"))).stop == "end_turn" and cli.made() == ["allowed"]
    [call] = (await session.send(cli.runs("touch asked"))).pending
    assert cli.made() == ["allowed"]
    assert (await session.send(grant(call))).stop == "end_turn" and cli.made() == ["allowed", "asked"]
    if trust:
        await session.say(cli.runs("touch trusted"))
        assert cli.made() == ["allowed", "asked", "trusted"]


async def test_a_task_is_refused_where_rules_decide(cli: RealCli) -> None:
    answer = await cli.client.post("/v1/execute", json={"driver": RULES, "task": cli.runs("touch denied")})
    assert (answer.status_code, cli.made()) == (403, []), answer.text


async def answer_all(session: Session, turn: Turn, given: dict[str, str]) -> tuple[Turn, int]:
    """Answer the calls of an application's tool, the last first. Return the last turn, and how many calls the first turn had."""
    first = len(turn.pending)
    while turn.stop == "tool_use":
        turn = await session.send(*(result(call, given[call["input"]["location"]]) for call in reversed(turn.pending)))
    return turn, first


async def test_application_tools(cli: RealCli, record_property: object) -> None:
    """The model calls the application's tool: once, and twenty times in one message."""
    session = await cli.create(cli.calls(Text("Asking. "), cli.app_call(location="Tokyo"), after="Mild."), app=[WEATHER])
    [call] = session.first.pending
    assert (call["name"], call["input"]) == ("get_weather", {"location": "Tokyo"})
    turn = await session.send(result(call, "18 degrees"))
    assert (turn.text, turn.stop, turn.messages) == ("Mild.", "end_turn", [{"role": "assistant", "content": "Mild."}])
    assert cli.request_text().index("Tokyo") < cli.request_text().index("18 degrees")
    first, asked, answered, last = await session.history()
    assert (first["role"], answered["role"], answered["content"], last["content"]) == ("user", "tool", "18 degrees", "Mild.")
    assert [block["type"] for block in asked["content"]] == ["text", "tool_use"]

    given = {f"city {n}": f"It is sunny in city {n}." for n in range(20)}
    prompt = cli.calls(*(cli.app_call(location=city) for city in given), after="All twenty.")
    turn, asked_at_once = await answer_all(session, await session.send(prompt), given)
    # That differs between releases.
    assert turn.text == "All twenty." and asked_at_once in (1, 20)
    assert [text for text in given.values() if cli.request_text().count(text) != 1] == []
    again = await session.send(result(call, "again"))
    assert again.status == 400
    record_property("behaviour", "serial" if asked_at_once == 1 else "parallel")  # type: ignore[operator]


async def test_results_of_megabytes_with_images_and_without_anything(cli: RealCli) -> None:
    session = await cli.create(cli.calls(cli.app_call(location="Tokyo")), app=[WEATHER])
    image = {"type": "image", "url": f"data:image/png;base64,{PIXEL}"}
    content = [{"type": "text", "text": "a map"}, image]
    assert (await session.send(result(session.first.pending[0], content))).stop == "end_turn"
    assert "a map" in cli.request_text() and PIXEL in cli.request_text()
    for large in ("Z" * min(cli.whole_result, 400_000), "Z" * 3_000_000, ""):
        [call] = (await session.send(cli.calls(cli.app_call(location="Tokyo")))).pending
        turn = await session.send(result(call, large))
        assert (turn.stop, turn.text) == ("end_turn", "Done.")
        assert large in cli.request_text() or len(large) > cli.whole_result
    assert (await session.history())[2]["content"] == content


async def test_own_and_application_tools_in_one_message(cli: RealCli) -> None:
    prompt = cli.calls(
        cli.app_call(location="Tokyo"), cli.app_call("get_time"), cli.command("touch made && echo made"), after="All done."
    )
    session = await cli.create(prompt, own=cli.ask, app=[WEATHER, CLOCK])
    assert len(session.first.pending) == (1 if cli.serial else 3)
    turn, called = session.first, []
    while turn.stop == "tool_use":
        pending = turn.pending
        called += [call["name"] for call in pending]
        assert cli.made() == []
        turn = await session.send(
            *(grant(call) if call["name"] == cli.shell else result(call, "It is noon.") for call in pending)
        )
    assert (sorted(called), turn.text) == (sorted(["get_weather", "get_time", cli.shell]), "All done.")
    assert cli.made() == ["made"] and cli.request_text().count("It is noon.") == 2


async def test_a_denied_call_and_a_message_instead_of_a_result(cli: RealCli) -> None:
    session = await cli.create(cli.calls(cli.app_call(location="Tokyo")), app=[WEATHER], own=cli.ask)
    turn = await session.send(deny(session.first.pending[0], "not today"))
    assert turn.stop == "end_turn" and "Tool call denied: not today" in cli.request_text()
    calls = cli.calls(cli.app_call(location="Oslo"), cli.command("touch made"))
    pending = (await session.send(calls)).pending
    assert await session.say("[[plain]] never mind") == PLAIN
    history = [message["content"] for message in await session.history() if message["role"] == "tool"]
    assert history == ["Tool call denied: not today", *["Tool call cancelled"] * len(pending)]
    late = await session.send(*(result(call, "late") for call in pending))
    assert late.status == 400 and cli.made() == []


async def test_tools_are_replaced_for_a_turn(cli: RealCli) -> None:
    session = await cli.create("[[plain]] one", app=[WEATHER], own=cli.ask)
    assert cli.offered_apps() == ["get_weather"]
    assert (await session.send("[[recall]]", tools=[CLOCK], agent={"tools": []})).text == (
        "I see 2 user texts. Before this one: [[plain]] one"
    )
    assert cli.offered_apps() == ["get_time"] and cli.shell not in cli.offered()
    [call] = (await session.send(cli.calls(cli.app_call("get_time")))).pending
    assert call["name"] == "get_time" and (await session.send(result(call, "noon"))).stop == "end_turn"


async def test_several_rounds(cli: RealCli) -> None:
    steps = Step((cli.app_call(location="Tokyo"),)), Step((cli.command("echo two"),)), Step((cli.app_call(location="Oslo"),))
    session = await cli.create(cli.script(*steps, text_step("Both.")), own=cli.trust, app=[WEATHER])
    turn = await session.send(result(session.first.pending[0], "one"))
    assert [call["name"] for call in turn.calls] == [cli.shell, "get_weather"]
    turn = await session.send(result(turn.pending[0], "three"))
    assert (turn.text, turn.stop) == ("Both.", "end_turn")


async def test_application_tools_with_the_names_of_the_clis_own(cli: RealCli) -> None:
    agents = (await cli.client.get("/meta")).json()["agents"]
    [names] = [[tool["name"] for tool in agent["tools"]] for agent in agents if agent["name"] == cli.name]
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": name, "description": "Mine.", "parameters": schema}} for name in names]
    body = {"model": cli.name, "messages": [user_message("[[plain]]")], "tools": tools}
    answer = await cli.client.post("/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["finish_reason"] == "stop", answer.text
    offered = cli.offered()
    assert [name for name in offered if offered.count(name) > 1] == []
    assert len(offered) >= len(names), json.dumps(offered)
