"""Application-side tools with the real codex: one, several, mixed with its own; results as text and images; changed tools."""

from __future__ import annotations

import pytest

from drivers.codex.app_tools import OWN_NAMES, names_for_cli
from gateway.security.authentication import ADMINISTRATOR
from tests.model_server.openai import OpenAIServer
from tests.real.codex.aap_client import WEATHER, calls_of, create_session, deny, grant, outputs, result, results_of, text_of, user
from tests.real.codex.conftest import Home
from tests.real.codex.test_codex_turns import PIXEL
from tests.real.own_tool_names import answer_with_own_names
from tests.real.processes import cli_of
from tests.support.daemon import RunningGateway
from tests.support.waiting import wait_until


async def test_a_call_of_the_clients_tool(portico: RunningGateway, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[weather]]", app=[WEATHER], stop="tool_use")
    (call,) = calls_of(aap.first["messages"])
    assert (call["name"], call["input"]) == ("get_weather", {"location": "Tokyo"})
    assert text_of(aap.first["messages"]) == "Asking. "
    answer = await aap.send(result(call, "18 degrees"))
    assert (answer["stopReason"], answer["messages"]) == ("end_turn", [{"role": "assistant", "content": "It is mild in Tokyo."}])
    assert outputs(model.bodies()[-1]) == ["18 degrees"]
    assert [m["role"] for m in await aap.history()] == ["user", "assistant", "tool", "assistant"]


async def test_the_frames_of_a_call(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]]", app=[WEATHER])
    frames = await aap.stream_turn("[[weather]]")
    assert [name for name, _ in frames] == ["turn_start", "text_delta", "tool_call", "turn_stop"]
    assert frames[-1] == ("turn_stop", {"stopReason": "tool_use"})


async def test_parallel_calls_are_answered_at_once_in_any_order(portico: RunningGateway, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[weathers]]", app=[WEATHER], stop="tool_use")
    calls = calls_of(aap.first["messages"])
    assert sorted(call["input"]["location"] for call in calls) == ["Oslo", "Paris", "Tokyo"]
    answer = await aap.send(*(result(call, f"{call['input']['location']}: 18") for call in reversed(calls)))
    assert text_of(answer["messages"]) == "All three are mild."
    assert outputs(model.bodies()[-1]) == ["Tokyo: 18", "Paris: 18", "Oslo: 18"]


async def test_twenty_calls_at_once(portico: RunningGateway, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[twenty]]", app=[WEATHER], stop="tool_use")
    calls = calls_of(aap.first["messages"])
    assert sorted(call["input"]["location"] for call in calls) == sorted(f"city {n}" for n in range(20))
    answer = await aap.send(*(result(call, f"{call['input']['location']}: 18") for call in reversed(calls)))
    assert text_of(answer["messages"]) == "All twenty."
    assert outputs(model.bodies()[-1]) == [f"city {n}: 18" for n in range(20)]


async def test_a_result_with_an_image(portico: RunningGateway, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[weather]]", app=[WEATHER], stop="tool_use")
    (call,) = calls_of(aap.first["messages"])
    await aap.send(result(call, [{"type": "text", "text": "a map"}, {"type": "image", "url": PIXEL}]))
    (output,) = outputs(model.bodies()[-1])
    assert [part.get("text") or part.get("image_url") for part in output] == ["a map", PIXEL]


async def test_a_result_of_five_megabytes(portico: RunningGateway, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[weather]]", app=[WEATHER], stop="tool_use")
    (call,) = calls_of(aap.first["messages"])
    assert text_of((await aap.send(result(call, "x" * 5_000_000)))["messages"]) == "It is mild in Tokyo."


async def test_application_and_own_tools_in_one_message(portico: RunningGateway, home: Home) -> None:
    own = {"shell": True, "apply_patch": False}
    aap = await create_session(portico.client, "[[mixed:m.txt]]", own=own, app=[WEATHER], stop="tool_use")
    weathers = [call for call in calls_of(aap.first["messages"]) if call["name"] == "get_weather"]
    assert len(weathers) == 2
    answer = await aap.send(*(result(call, "18") for call in weathers))
    # The CLI requests permission for a patch only after the other calls of the message.
    (patch,) = [call for call in calls_of(answer["messages"]) if call["name"] == "apply_patch"]
    assert (answer["stopReason"], (home.work / "m.txt").exists()) == ("tool_use", False)
    # On a busy machine the trusted command may begin after the others have been announced.
    assert "own\n" in results_of([*aap.first["messages"], *answer["messages"]]).values()
    answer = await aap.send(grant(patch))
    assert (text_of(answer["messages"]), (home.work / "m.txt").exists()) == ("All four done.", True)


async def test_a_user_message_instead_of_a_result(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[weather]]", app=[WEATHER], stop="tool_use")
    assert (await aap.send_turn("[[plain]]")).startswith("Hello")
    assert [m["role"] for m in await aap.history()] == ["user", "assistant", "tool", "user", "assistant"]


async def test_the_model_receives_the_denial_of_a_call(portico: RunningGateway, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[weather]]", app=[WEATHER], stop="tool_use")
    await aap.send(deny(calls_of(aap.first["messages"])[0], "not today"))
    assert outputs(model.bodies()[-1]) == ["Tool call denied: not today"]


async def test_tools_are_kept_after_a_process_exit_and_can_be_changed(
    portico: RunningGateway, home: Home, model: OpenAIServer
) -> None:
    aap = await create_session(portico.client, "[[plain]] one", app=[WEATHER])
    process = cli_of(home.path)
    process.kill()
    session = await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)
    await wait_until(lambda: not session.live.alive, "its exit is detected")
    answer = await aap.send("[[weather]]")
    assert (answer["stopReason"], len(home.threads())) == ("tool_use", 1)
    await aap.send(result(calls_of(answer["messages"])[0], "18"))
    other = {**WEATHER, "name": "get_time"}
    await aap.send_turn("[[plain]] two", tools=[other])
    names = {tool.get("name") for tool in model.bodies()[-1]["tools"]}
    assert "get_time" in names and "get_weather" not in names
    assert (await aap.send_turn("[[recall]]")).startswith(
        "I see 4 user texts. Before this one: [[plain]] one | [[weather]] | [[plain]] two"
    )


async def test_code_mode_calls_are_calls_too(portico: RunningGateway, home: Home) -> None:
    own = {"shell": False}
    aap = await create_session(portico.client, user("[[code]]"), own=own, model="gpt-6.1-sol", stop="tool_use")
    (call,) = calls_of(aap.first["messages"])
    assert (call["name"], call["input"]["command"]) == ("shell", "echo from-code")
    answer = await aap.send(grant(call))
    assert results_of(answer["messages"]) == {call["toolCallId"]: "from-code\n"}
    assert text_of(answer["messages"]) == "The code ran."


@pytest.mark.parametrize("mode", ["ask", "workspace", "full-access"])
async def test_a_rule_denies_the_clients_tool_in_the_modes_of_the_cli(home: Home, model: OpenAIServer, mode: str) -> None:
    home.agent |= {
        "options": {"mode": mode},
        "allow_bypass": True,
        "policy": [{"tool": "get_weather", "decide": "deny", "reason": "No weather."}],
    }
    async with home.gateway() as running:
        aap = await create_session(running.client, "[[weather]]", app=[WEATHER])
        assert "No weather." in next(iter(results_of(aap.first["messages"]).values()))
    assert "No weather." in outputs(model.bodies()[-1])[0]


async def test_tools_with_the_names_of_its_own_tools_are_there_once(portico: RunningGateway, model: OpenAIServer) -> None:
    names = await answer_with_own_names(portico, "codex")
    sent = [tool.get("name") or tool["type"] for tool in model.bodies()[-1]["tools"]]
    assert [name for name in sent if sent.count(name) > 1] == []
    assert set(names_for_cli(names)) <= set(sent)


async def test_every_own_tool_of_the_cli_is_known_by_name(portico: RunningGateway, model: OpenAIServer) -> None:
    """A new one of a release belongs to `OWN_NAMES`: an application's tool of that name would not be offered."""
    names = await answer_with_own_names(portico, "codex")
    sent = {tool.get("name") or tool["type"] for tool in model.bodies()[-1]["tools"]}
    assert sent - set(names_for_cli(names)) <= OWN_NAMES
