"""Application-side tools with the real gemini: the client's own names, one call after the other, results of every sort."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.daemon import Running
from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, say
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
        "weather": Scenario((Step((Text("Asking. "), weather("Tokyo"))), say("It is mild in Tokyo."))),
        "weathers": Scenario((Step((weather("Tokyo"), weather("Oslo"))), say("Both are mild."))),
        "twenty": Scenario((Step(tuple(weather(f"city {n}") for n in range(20))), say("All twenty."))),
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
                say("All four done."),
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
