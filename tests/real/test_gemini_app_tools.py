"""Application-side tools with the real gemini: results that are too large, its connection to the gateway, a project's servers."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import httpx

from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, text_step
from tests.real.aap_client import AapSession, text_of
from tests.real.editor import SERVER
from tests.real.gemini import PIXEL, SCENARIOS, Gemini, create_session
from tests.real.processes import arguments, processes_of
from tests.real.real_cli import WEATHER
from tests.support.daemon import RunningGateway

ASKING = Text("Asking. "), ToolUse("mcp_portico_get_weather", {"location": "Tokyo"})
SCENARIOS["weather"] = Scenario((Step(ASKING), text_step("It is mild in Tokyo.")))
SCENARIOS["secret"] = Scenario((Step((ToolUse("mcp_portico_secret", {}),)), text_step("Done.")))


async def result(aap: AapSession, content: Any) -> dict[str, Any]:
    return await aap.send({"role": "tool", "toolCallId": aap.pending_call()["toolCallId"], "content": content})


def responses(gemini: Gemini) -> list[Any]:
    """The tool results in the newest model request."""
    return [part["functionResponse"] for part in gemini.last_request()["contents"][-1]["parts"] if "functionResponse" in part]


async def test_results_of_megabytes_and_images(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[weather]]", app=[WEATHER])
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


async def test_tool_calls_do_not_use_a_proxy(gemini: Gemini) -> None:
    gemini.env.update({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "localhost"})
    async with gemini.gateway() as running:
        aap = await create_session(running.client, "[[weather]]", app=[WEATHER])
        await result(aap, "18 degrees")
        assert text_of(aap.last["messages"]) == "It is mild in Tokyo."


async def test_the_token_is_in_no_argument_and_invalid_after_deletion(gemini: Gemini, running: RunningGateway) -> None:
    aap = await create_session(running.client, "[[weather]]", app=[WEATHER])
    settings = json.loads(next((gemini.base / "data").rglob(".gemini/settings.json")).read_text())
    server = settings["mcpServers"]["portico"]
    token = server["headers"]["Authorization"].partition(" ")[2]
    assert not any(token in part for process in processes_of(gemini.home) for part in arguments(process))
    async with httpx.AsyncClient(headers=server["headers"]) as other:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await other.post(server["httpUrl"], json=body)).status_code != 401
        await running.client.delete(f"/session/{aap.id}")
        assert (await other.post(server["httpUrl"], json=body)).status_code == 401


async def test_no_server_of_a_project_runs_the_applications_tools(gemini: Gemini) -> None:
    (gemini.work / ".gemini").mkdir()
    server = {"command": sys.executable, "args": [str(SERVER)], "env": {"SECRET": "abc"}}
    (gemini.work / ".gemini" / "settings.json").write_text(json.dumps({"mcpServers": {"portico": server}}))
    tool = {"name": "secret", "description": "The client's.", "inputSchema": {"type": "object", "properties": {}}}
    async with gemini.gateway() as running:
        body = {"agent": {"name": "gemini"}, "tools": [tool], "messages": [{"role": "user", "content": "[[secret]]"}]}
        answer = await running.client.put("/session", json=body)
        assert "may have an MCP server named 'portico'" in answer.text
