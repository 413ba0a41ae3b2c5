"""Application-side tools with the real gemini: the client's own names, one call after the other, results of every sort."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest

from tests.daemon import Running
from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, text_step
from tests.real.gemini import PIXEL, READ, SCENARIOS, SHELL, Gemini, Talk, gemini, running, text_of

__all__ = ["gemini", "running"]

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


async def begin(client: httpx.AsyncClient, text: str, app: Any = (WEATHER,), own: dict[str, bool] | None = None) -> Talk:
    grants = [{"name": name, "trust": trust} for name, trust in (own or {}).items()]
    body = {"agent": {"name": "gemini", "tools": grants}, "tools": list(app), "messages": [{"role": "user", "content": text}]}
    answer = await client.put("/session", json=body)
    assert answer.status_code == 201, answer.text
    return Talk(client, answer.json()["sessionId"], answer.json())


async def result(talk: Talk, content: Any) -> dict[str, Any]:
    return await talk.post({"role": "tool", "toolCallId": talk.open_call()["toolCallId"], "content": content})


def responses(gemini: Gemini) -> list[Any]:
    """The results that the model was given last."""
    return [part["functionResponse"] for part in gemini.asked()["contents"][-1]["parts"] if "functionResponse" in part]


async def test_a_call_of_the_clients_tool(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[weather]]")
    assert gemini.tools() == ["mcp_portico_get_weather"]
    call = talk.open_call()
    assert (call["name"], call["input"]) == ("get_weather", {"location": "Tokyo"})
    assert text_of(talk.last["messages"]) == "Asking. "
    answer = await result(talk, "18 degrees")
    assert (answer["stopReason"], answer["messages"]) == ("end_turn", [{"role": "assistant", "content": "It is mild in Tokyo."}])
    assert "18 degrees" in json.dumps(responses(gemini))
    history = (await running.client.get(f"/session/{talk.id}")).json()["history"]["full"]
    assert [m["role"] for m in history] == ["user", "assistant", "tool", "assistant"]


async def test_calls_of_one_message_come_one_after_the_other(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[weathers]]")
    for location in ("Tokyo", "Oslo"):
        assert talk.open_call()["input"] == {"location": location}
        await result(talk, f"{location}: 18")
    assert text_of(talk.last["messages"]) == "Both are mild."
    assert [f"{place}: 18" in json.dumps(answer) for place, answer in zip(("Tokyo", "Oslo"), responses(gemini), strict=True)]


async def test_twenty_calls(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[twenty]]")
    for n in range(20):
        assert talk.open_call()["input"] == {"location": f"city {n}"}
        await result(talk, f"result {n}")
    assert text_of(talk.last["messages"]) == "All twenty."
    assert [f"result {n}" in json.dumps(answer) for n, answer in enumerate(responses(gemini))] == [True] * 20


async def test_the_clients_and_its_own_tools_in_one_message(gemini: Gemini, running: Running) -> None:
    (gemini.work / "f.txt").write_text("content")
    talk = await begin(running.client, "[[mixed]]", [WEATHER, CLOCK], {READ: True, SHELL: False})
    assert talk.open_call()["name"] == "get_weather"
    await result(talk, "18")
    assert talk.open_call()["name"] == "get_time"
    await result(talk, "noon")
    # The trusted one has run inline.
    assert [m["role"] for m in talk.last["messages"]] == ["assistant", "tool", "assistant"]
    assert talk.open_call()["name"] == SHELL
    assert not (gemini.work / "made.txt").exists()
    await talk.permit(True)
    assert (text_of(talk.last["messages"]), (gemini.work / "made.txt").exists()) == ("All four done.", True)
    assert len(responses(gemini)) == 4


async def test_results_of_megabytes_and_images(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[weather]]")
    await result(talk, "x" * 3_000_000)
    assert text_of(talk.last["messages"]) == "It is mild in Tokyo."
    assert "x" * 3_000_000 in json.dumps(responses(gemini))
    await talk.send_turn("[[weather]]", stop="tool_use")
    large = PIXEL.partition(",")[0] + "," + base64.b64encode(bytes(3_900_000)).decode()
    await result(talk, [{"type": "text", "text": "a map"}, {"type": "image", "url": large}])
    assert text_of(talk.last["messages"]) == "It is mild in Tokyo."
    given = json.dumps(gemini.asked()["contents"][-1])
    assert "a map" in given and large.rpartition(",")[2] in given
    # By the CLI's count this is more than its model holds.
    await talk.send_turn("[[weather]]", stop="tool_use")
    await result(talk, "x" * 5_000_000)
    assert talk.last["stopReason"] == "max_tokens"


@pytest.mark.parametrize("own", [{}, {SHELL: False}])
async def test_no_tool_of_its_own_slips_in_beside_the_clients(gemini: Gemini, running: Running, own: dict[str, bool]) -> None:
    talk = await begin(running.client, "[[filewrite:made.txt]]", own=own)
    assert talk.last["stopReason"] == "end_turn"
    assert sorted(gemini.tools()) == sorted(["mcp_portico_get_weather", *own])
    await talk.send_turn("[[fileread:made.txt]]")
    if not own:
        await talk.send_turn("[[run:touch made.txt]]")
    assert not (gemini.work / "made.txt").exists()


async def test_a_denied_call_and_a_user_message_in_place_of_a_result(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[weather]]")
    call = talk.open_call()["toolCallId"]
    await talk.post({"role": "tool_permission", "toolCallId": call, "granted": False, "reason": "not today"})
    assert talk.last["stopReason"] == "end_turn"
    assert "Tool call denied: not today" in json.dumps(responses(gemini))
    await talk.send_turn("[[weather]]", stop="tool_use")
    assert await talk.send_turn("[[plain]]") == "Hello from the model, this is plain text."
    history = (await running.client.get(f"/session/{talk.id}")).json()["history"]["full"]
    assert [m["content"] for m in history if m["role"] == "tool"] == ["Tool call denied: not today", "Tool call cancelled"]


async def test_other_tools_from_the_next_message_on(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[plain]] one")
    await talk.post({"role": "user", "content": "[[recall]]"}, tools=[CLOCK])
    assert gemini.tools() == ["mcp_portico_get_time"]
    assert text_of(talk.last["messages"]) == "I see 2 user texts. Before this one: [[plain]] one"


async def test_a_proxy_is_not_asked_for_the_tools(gemini: Gemini) -> None:
    gemini.env.update({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "localhost"})
    async with gemini.gateway() as running:
        talk = await begin(running.client, "[[weather]]")
        await result(talk, "18 degrees")
        assert text_of(talk.last["messages"]) == "It is mild in Tokyo."


async def test_no_token_in_arguments_or_left_behind(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[weather]]")
    settings = json.loads(next((gemini.base / "data").rglob(".gemini/settings.json")).read_text())
    server = settings["mcpServers"]["portico"]
    token = server["headers"]["Authorization"].partition(" ")[2]
    assert not any(token in part for process in gemini.processes("") for part in process.cmdline())
    async with httpx.AsyncClient(headers=server["headers"]) as stranger:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await stranger.post(server["httpUrl"], json=body)).status_code != 401
        await running.client.delete(f"/session/{talk.id}")
        assert (await stranger.post(server["httpUrl"], json=body)).status_code == 401


@pytest.mark.parametrize("killed", ["daemon", "cli"])
async def test_open_calls_outlive_their_agent(gemini: Gemini, killed: str) -> None:
    daemon = await gemini.daemon()
    async with daemon.client() as client:
        client.timeout = httpx.Timeout(120)
        talk = await begin(client, "[[weather]]")
        if killed == "cli":
            for process in gemini.processes("node"):
                process.kill()
                await asyncio.to_thread(process.wait, 30)
    if killed == "daemon":
        await daemon.kill()
        await daemon.start()
    async with daemon.client() as client:
        client.timeout = httpx.Timeout(120)
        talk.client = client
        session = (await client.get(f"/session/{talk.id}")).json()
        assert (session["state"], session["history"]["full"][-1]["content"][-1]["name"]) == ("waiting", "get_weather")
        await result(talk, "18 degrees")
        assert talk.last["stopReason"] == "end_turn"
        seeded = json.dumps(gemini.asked()["contents"])
        assert "18 degrees" in seeded and '"mcp_portico_get_weather"' in seeded
        again = {"messages": [{"role": "tool", "toolCallId": "x", "content": "18"}]}
        assert (await client.post(f"/session/{talk.id}", json=again)).status_code == 400
        # It can call them again.
        await talk.send_turn("[[weather]]", stop="tool_use")
        assert "19" not in json.dumps(responses(gemini))
        await result(talk, "19 degrees")
        assert "19 degrees" in json.dumps(responses(gemini))
