"""The acp driver with real agents by their command lines: gemini, and a small agent in its own process."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.gateway.cli.test_acp import small_agent
from tests.real.aap_client import AapSession, text_of
from tests.real.gemini import PROGRAM, Gemini
from tests.real.real_cli import WEATHER


def by_command_line(gemini: Gemini) -> dict[str, Any]:
    """The configuration of gemini as any agent of the protocol, with the home folder and the settings of the user."""
    own = gemini.home / ".gemini"
    own.mkdir()
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"maxAttempts": 2}}
    (own / "settings.json").write_text(json.dumps(settings))
    env = {**gemini.env, "GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    return {"driver": "acp", "program": str(PROGRAM), "args": ["--acp"], "cwd": str(gemini.work), "env": env}


async def create(client: httpx.AsyncClient, text: str, **agent: Any) -> dict[str, Any]:
    answer = await client.put("/session", json={"agent": agent, "messages": [{"role": "user", "content": text}]})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_gemini_by_its_command_line(gemini: Gemini) -> None:
    async with gemini.gateway(agents={"any": by_command_line(gemini)}) as running:
        made = await create(running.client, "hello [[plain]]", name="any", tools=[{"name": "execute"}])
        assert text_of(made["messages"]) == "Hello from the model, this is plain text."
        for granted in (False, True):
            body: dict[str, Any] = {"messages": [{"role": "user", "content": "[[run:touch made.txt]]"}]}
            answer = (await running.client.post(f"/session/{made['sessionId']}", json=body)).json()
            call = answer["messages"][-1]["content"][-1]
            assert (call["name"], call["input"]["title"]) == ("execute", "touch made.txt")
            reply = {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": granted}
            answer = (await running.client.post(f"/session/{made['sessionId']}", json={"messages": [reply]})).json()
            assert answer["stopReason"] == "end_turn"
            assert (gemini.work / "made.txt").exists() is granted


async def test_application_tools_with_any_agent(gemini: Gemini) -> None:
    """The agent requests permission before it requests the call over MCP, and names the tool in a title only."""
    async with gemini.gateway(agents={"any": by_command_line(gemini)}) as running:
        answer = await running.client.put(
            "/session",
            json={
                "agent": {"name": "any", "tools": [{"name": "other"}]},
                "tools": [WEATHER],
                "messages": [{"role": "user", "content": "[[weather]]"}],
            },
        )
        assert answer.status_code == 201, answer.text
        aap = AapSession(running.client, answer.json()["sessionId"], answer.json())
        assert aap.pending_call()["name"] == "other"
        await aap.permit(True)
        assert (aap.pending_call()["name"], aap.pending_call()["input"]) == ("get_weather", {"location": "Tokyo"})
        await aap.send({"role": "tool", "toolCallId": aap.pending_call()["toolCallId"], "content": "18 degrees"})
        assert text_of(aap.last["messages"]) == "It is mild in Tokyo."
        # The result of the call that was asked about; the application's own result is not repeated.
        assert [message["role"] for message in aap.last["messages"]] == ["tool", "assistant"]


async def test_a_small_agent_behind_a_daemon_that_is_killed(gemini: Gemini) -> None:
    daemon = await gemini.daemon(agents={"small": small_agent(gemini.base)})
    async with daemon.client() as client:
        made = await create(client, "say one", name="small")
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        body = {"messages": [{"role": "user", "content": "recall"}]}
        answer = (await client.post(f"/session/{made['sessionId']}", json=body)).json()
    assert answer["messages"][-1]["content"] == "say one | recall"
