"""Application-side tools with the real gemini: the client's own names, one call after the other, results of every sort."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

import httpx
import pytest

from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, text_step
from tests.real.editor import SERVER
from tests.real.gemini import PIXEL, READ, SCENARIOS, SHELL, AapSession, Gemini, text_of
from tests.real.own_tool_names import answer_with_own_names
from tests.real.processes import arguments, processes_of
from tests.support.daemon import RunningGateway

WEATHER = {
    "name": "get_weather",
    "description": "The weather.",
    "inputSchema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
CLOCK = {"name": "get_time", "description": "The time.", "inputSchema": {"type": "object", "properties": {}}}


def weather(location: str) -> ToolUse:
    return ToolUse("mcp_portico_get_weather", {"location": location})


SCENARIOS.update(
    {
        "weather": Scenario((Step((Text("Asking. "), weather("Tokyo"))), text_step("It is mild in Tokyo."))),
        "weathers": Scenario((Step((weather("Tokyo"), weather("Oslo"))), text_step("Both are mild."))),
        "secret": Scenario((Step((ToolUse("mcp_portico_secret", {}),)), text_step("Done."))),
        "twenty": Scenario((Step(tuple(weather(f"city {n}") for n in range(20))), text_step("All twenty."))),
        "mixed": Scenario(
            (
                Step(
                    (
                        weather("Tokyo"),
                        ToolUse("mcp_portico_get_time", {}),
                        ToolUse(READ, {"file_path": "f.txt"}),
                        ToolUse(SHELL, {"command": "touch made.txt", "description": "touch"}),
                    )
                ),
                text_step("All four done."),
            )
        ),
    }
)


async def create_session(
    client: httpx.AsyncClient, text: str, app: Any = (WEATHER,), own: dict[str, bool] | None = None
) -> AapSession:
    grants = [{"name": name, "trust": trust} for name, trust in (own or {}).items()]
    body = {"agent": {"name": "gemini", "tools": grants}, "tools": list(app), "messages": [{"role": "user", "content": text}]}
    answer = await client.put("/session", json=body)
    assert answer.status_code == 201, answer.text
    return AapSession(client, answer.json()["sessionId"], answer.json())


async def result(aap: AapSession, content: Any) -> dict[str, Any]:
    return await aap.post({"role": "tool", "toolCallId": aap.pending_call()["toolCallId"], "content": content})


def responses(gemini: Gemini) -> list[Any]:
    """The tool results in the newest model request."""
    return [part["functionResponse"] for part in gemini.last_request()["contents"][-1]["parts"] if "functionResponse" in part]


async def test_a_call_of_the_clients_tool(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[weather]]")
    assert gemini.tools() == ["mcp_portico_get_weather"]
    call = aap.pending_call()
    assert (call["name"], call["input"]) == ("get_weather", {"location": "Tokyo"})
    assert text_of(aap.last["messages"]) == "Asking. "
    answer = await result(aap, "18 degrees")
    assert (answer["stopReason"], answer["messages"]) == ("end_turn", [{"role": "assistant", "content": "It is mild in Tokyo."}])
    assert "18 degrees" in json.dumps(responses(gemini))
    history = (await running.client.get(f"/session/{aap.id}")).json()["history"]["full"]
    assert [m["role"] for m in history] == ["user", "assistant", "tool", "assistant"]


async def test_calls_of_one_message_come_one_after_the_other(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[weathers]]")
    for location in ("Tokyo", "Oslo"):
        assert aap.pending_call()["input"] == {"location": location}
        await result(aap, f"{location}: 18")
    assert text_of(aap.last["messages"]) == "Both are mild."
    assert [f"{city}: 18" in json.dumps(answer) for city, answer in zip(("Tokyo", "Oslo"), responses(gemini), strict=True)]


async def test_twenty_calls(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[twenty]]")
    for n in range(20):
        assert aap.pending_call()["input"] == {"location": f"city {n}"}
        await result(aap, f"result {n}")
    assert text_of(aap.last["messages"]) == "All twenty."
    assert [f"result {n}" in json.dumps(answer) for n, answer in enumerate(responses(gemini))] == [True] * 20


async def test_application_and_own_tools_in_one_message(gemini: Gemini, running: RunningGateway) -> None:
    (gemini.work / "f.txt").write_text("content")
    aap = await create_session(running.client, "[[mixed]]", [WEATHER, CLOCK], {READ: True, SHELL: False})
    assert aap.pending_call()["name"] == "get_weather"
    await result(aap, "18")
    assert aap.pending_call()["name"] == "get_time"
    await result(aap, "noon")
    # The trusted call has run in the turn.
    assert [m["role"] for m in aap.last["messages"]] == ["assistant", "tool", "assistant"]
    assert aap.pending_call()["name"] == SHELL
    assert not (gemini.work / "made.txt").exists()
    await aap.permit(True)
    assert (text_of(aap.last["messages"]), (gemini.work / "made.txt").exists()) == ("All four done.", True)
    assert len(responses(gemini)) == 4


async def test_results_of_megabytes_and_images(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[weather]]")
    await result(aap, "x" * 3_000_000)
    assert text_of(aap.last["messages"]) == "It is mild in Tokyo."
    assert "x" * 3_000_000 in json.dumps(responses(gemini))
    await aap.send_turn("[[weather]]", stop="tool_use")
    large = PIXEL.partition(",")[0] + "," + base64.b64encode(bytes(3_900_000)).decode()
    await result(aap, [{"type": "text", "text": "a map"}, {"type": "image", "url": large}])
    assert text_of(aap.last["messages"]) == "It is mild in Tokyo."
    given = json.dumps(gemini.last_request()["contents"][-1])
    assert "a map" in given and large.rpartition(",")[2] in given
    # The CLI counts more tokens than the context of its model.
    await aap.send_turn("[[weather]]", stop="tool_use")
    await result(aap, "x" * 5_000_000)
    assert aap.last["stopReason"] == "max_tokens"


@pytest.mark.parametrize("own", [{}, {SHELL: False}])
async def test_unlisted_own_tools_do_not_run_with_application_tools(
    gemini: Gemini, running: RunningGateway, own: dict[str, bool]
) -> None:
    aap = await create_session(running.client, "[[filewrite:made.txt]]", own=own)
    assert aap.last["stopReason"] == "end_turn"
    assert sorted(gemini.tools()) == sorted(["mcp_portico_get_weather", *own])
    await aap.send_turn("[[fileread:made.txt]]")
    if not own:
        await aap.send_turn("[[run:touch made.txt]]")
    assert not (gemini.work / "made.txt").exists()


async def test_a_denied_call_and_a_user_message_instead_of_a_result(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[weather]]")
    call = aap.pending_call()["toolCallId"]
    await aap.post({"role": "tool_permission", "toolCallId": call, "granted": False, "reason": "not today"})
    assert aap.last["stopReason"] == "end_turn"
    assert "Tool call denied: not today" in json.dumps(responses(gemini))
    await aap.send_turn("[[weather]]", stop="tool_use")
    assert await aap.send_turn("[[plain]]") == "Hello from the model, this is plain text."
    history = (await running.client.get(f"/session/{aap.id}")).json()["history"]["full"]
    assert [m["content"] for m in history if m["role"] == "tool"] == ["Tool call denied: not today", "Tool call cancelled"]


async def test_tools_are_replaced_with_the_next_message(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[plain]] one")
    await aap.post({"role": "user", "content": "[[recall]]"}, tools=[CLOCK])
    assert gemini.tools() == ["mcp_portico_get_time"]
    assert text_of(aap.last["messages"]) == "I see 2 user texts. Before this one: [[plain]] one"


async def test_tool_calls_do_not_use_a_proxy(gemini: Gemini) -> None:
    gemini.env.update({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "localhost"})
    async with gemini.gateway() as running:
        aap = await create_session(running.client, "[[weather]]")
        await result(aap, "18 degrees")
        assert text_of(aap.last["messages"]) == "It is mild in Tokyo."


async def test_the_token_is_in_no_argument_and_invalid_after_deletion(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[weather]]")
    settings = json.loads(next((gemini.base / "data").rglob(".gemini/settings.json")).read_text())
    server = settings["mcpServers"]["portico"]
    token = server["headers"]["Authorization"].partition(" ")[2]
    assert not any(token in part for process in processes_of(gemini.home) for part in arguments(process))
    async with httpx.AsyncClient(headers=server["headers"]) as other:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await other.post(server["httpUrl"], json=body)).status_code != 401
        await running.client.delete(f"/session/{aap.id}")
        assert (await other.post(server["httpUrl"], json=body)).status_code == 401


@pytest.mark.parametrize("killed", ["daemon", "cli"])
async def test_pending_calls_are_answered_after_a_restart(gemini: Gemini, killed: str) -> None:
    daemon = await gemini.daemon()
    async with daemon.client() as client:
        client.timeout = httpx.Timeout(120)
        aap = await create_session(client, "[[weather]]")
        if killed == "cli":
            for process in processes_of(gemini.home, "node"):
                process.kill()
                await asyncio.to_thread(process.wait, 30)
    if killed == "daemon":
        await daemon.kill()
        await daemon.start()
    async with daemon.client() as client:
        client.timeout = httpx.Timeout(120)
        aap.client = client
        session = (await client.get(f"/session/{aap.id}")).json()
        assert session["x-portico"]["state"] == "waiting"
        assert session["history"]["full"][-1]["content"][-1]["name"] == "get_weather"
        await result(aap, "18 degrees")
        assert aap.last["stopReason"] == "end_turn"
        seeded = json.dumps(gemini.last_request()["contents"])
        assert "18 degrees" in seeded and '"mcp_portico_get_weather"' in seeded
        again = {"messages": [{"role": "tool", "toolCallId": "x", "content": "18"}]}
        assert (await client.post(f"/session/{aap.id}", json=again)).status_code == 400
        # Later calls work too.
        await aap.send_turn("[[weather]]", stop="tool_use")
        assert "19" not in json.dumps(responses(gemini))
        await result(aap, "19 degrees")
        assert "19 degrees" in json.dumps(responses(gemini))


async def test_tools_with_the_names_of_its_own_tools_are_there_once(gemini: Gemini, running: RunningGateway) -> None:
    names = await answer_with_own_names(running, "gemini")
    sent = gemini.tools()
    assert [name for name in sent if sent.count(name) > 1] == []
    assert all(any(name in tool for tool in sent) for name in names)


async def test_no_server_of_a_project_runs_the_applications_tools(gemini: Gemini) -> None:
    (gemini.work / ".gemini").mkdir()
    server = {"command": sys.executable, "args": [str(SERVER)], "env": {"SECRET": "abc"}}
    (gemini.work / ".gemini" / "settings.json").write_text(json.dumps({"mcpServers": {"portico": server}}))
    tool = {"name": "secret", "description": "The client's.", "inputSchema": {"type": "object", "properties": {}}}
    async with gemini.gateway() as running:
        body = {"agent": {"name": "gemini"}, "tools": [tool], "messages": [{"role": "user", "content": "[[secret]]"}]}
        answer = await running.client.put("/session", json=body)
        assert "may have an MCP server named 'portico'" in answer.text
