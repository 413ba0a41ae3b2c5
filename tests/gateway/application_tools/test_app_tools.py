"""Application-side tools that an agent calls by MCP, over HTTP and over the bridge. The agent is tests/support/acp_agent.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cli.test_acp import small_agent
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import get_session

LOOKUP = {
    "name": "look_up",
    "description": "Looks up.",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
}
CLOCK = {"name": "get_time", "description": "The time.", "inputSchema": {"type": "object"}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(params=["http", "bridge"])
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    agent = small_agent(tmp_path)
    agent["env"]["ACP_AGENT_FLAGS"] = "http" if request.param == "http" else ""
    async with run_gateway(gateway_config(tmp_path, agents={"small": agent})) as found:
        yield found


class SessionClient:
    """A client of one session; `last` is the last response."""

    def __init__(self, running: RunningGateway, made: dict[str, Any]) -> None:
        self.client, self.id, self.last = running.client, made["sessionId"], made

    @classmethod
    async def create(cls, running: RunningGateway, text: str, tools: Any = (LOOKUP,), own: Any = ()) -> SessionClient:
        agent = {"name": "small", "tools": list(own)}
        body = {"agent": agent, "tools": list(tools), "messages": [{"role": "user", "content": text}]}
        answer = await running.client.put("/session", json=body)
        assert answer.status_code == 201, answer.text
        return cls(running, answer.json())

    async def post(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        answer = await self.client.post(f"/session/{self.id}", json={"messages": list(messages), **more})
        assert answer.status_code == 200, answer.text
        self.last = answer.json()
        return self.last

    async def send_turn(self, text: str, **more: Any) -> str:
        await self.post({"role": "user", "content": text}, **more)
        return self.text

    @property
    def text(self) -> str:
        """The text of the last message."""
        content = self.last["messages"][-1]["content"]
        return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)

    @property
    def pending_calls(self) -> list[dict[str, Any]]:
        assert self.last["stopReason"] == "tool_use", self.last
        return [block for block in self.last["messages"][-1]["content"] if block["type"] == "tool_use"]

    async def roles(self) -> list[str]:
        history = (await self.client.get(f"/session/{self.id}")).json()["history"]["full"]
        return [message["role"] for message in history]


def result(call: dict[str, Any], content: Any) -> dict[str, Any]:
    return {"role": "tool", "toolCallId": call["toolCallId"], "content": content}


def permission(call: dict[str, Any], granted: bool) -> dict[str, Any]:
    return {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": granted}


async def test_application_tools_are_listed_to_the_agent(running: RunningGateway) -> None:
    session = await SessionClient.create(running, "tools", [LOOKUP, CLOCK])
    assert json.loads(session.text) == [[tool["name"], tool["description"], tool["inputSchema"]] for tool in (LOOKUP, CLOCK)]
    # A session without tools lists none.
    assert (await SessionClient.create(running, "tools", [])).text == "[]"


async def test_call_stops_the_turn_and_its_result_reaches_the_agent(running: RunningGateway) -> None:
    session = await SessionClient.create(running, 'call look_up {"n": 5}')
    (call,) = session.pending_calls
    assert (call["name"], call["input"], session.text) == ("look_up", {"n": 5}, "Calling. ")
    answer = await session.post(result(call, "five"))
    assert (answer["stopReason"], answer["messages"]) == ("end_turn", [{"role": "assistant", "content": "five"}])
    assert await session.roles() == ["user", "assistant", "tool", "assistant"]
    await session.send_turn("call look_up")
    assert session.pending_calls[0]["input"] == {}
    await session.post(result(session.pending_calls[0], [{"type": "text", "text": "a map"}, {"type": "image", "url": PIXEL}]))
    assert session.text == f"a map, image of {len(PIXEL.partition(',')[2])}"


async def test_result_of_five_megabytes_reaches_the_agent(running: RunningGateway) -> None:
    session = await SessionClient.create(running, "call look_up")
    await session.post(result(session.pending_calls[0], "x" * 5_000_000))
    assert session.text == "5000000 long"


@pytest.mark.parametrize("how", ["reported", "made"])
async def test_twenty_calls_are_answered_in_one_request(running: RunningGateway, how: str) -> None:
    """`made` calls are made at once; `reported` calls are made one after the other and reported beforehand."""
    session = await SessionClient.create(running, f"many 20 look_up {how}")
    calls = session.pending_calls
    assert sorted(call["input"]["n"] for call in calls) == list(range(20))
    partly = await running.client.post(f"/session/{session.id}", json={"messages": [result(calls[0], "0")]})
    assert partly.status_code == 400 and calls[1]["toolCallId"] in partly.text
    await session.post(*(result(call, f"result {call['input']['n']}") for call in reversed(calls)))
    assert session.text == " | ".join(f"result {n}" for n in range(20))
    assert len(set(call["toolCallId"] for call in calls)) == 20


async def test_call_without_tool_call_update_is_answered(running: RunningGateway) -> None:
    session = await SessionClient.create(running, "silent look_up")
    await session.post(result(session.pending_calls[0], "result"))
    assert session.text == "result"
    assert await session.roles() == ["user", "assistant", "tool", "assistant"]


async def test_permission_request_before_the_call_is_decided_by_the_client(running: RunningGateway) -> None:
    """The agent could run anything under a title: only a request over MCP is a call of the tool."""
    session = await SessionClient.create(running, "ask look_up", own=[{"name": "other"}])
    (asked,) = session.pending_calls
    assert (asked["name"], asked["input"]) == ("other", {"a": 1})
    await session.post(permission(asked, True))
    (call,) = session.pending_calls
    assert (call["name"], call["input"]) == ("look_up", {"a": 1})
    await session.post(result(call, "asked"))
    assert session.text == "asked"
    await session.send_turn("ask look_up")
    await session.post(permission(session.pending_calls[0], False))
    assert session.text == "not called"
    # Its program names the tool: the application runs that, so it needs no permission.
    await session.send_turn("ask look_up named")
    (call,) = session.pending_calls
    assert (call["name"], call["input"]) == ("look_up", {"a": 1})
    await session.post(result(call, "named"))
    assert session.text == "named"


async def test_permission_request_of_a_kind_that_is_not_listed_is_rejected(running: RunningGateway) -> None:
    session = await SessionClient.create(running, "ask look_up")
    assert session.text == "not called"
    assert await session.send_turn("ask no_such_tool named") == "not called"


async def test_application_call_and_own_call_of_the_agent_in_parallel(running: RunningGateway) -> None:
    session = await SessionClient.create(running, "mixed look_up", own=[{"name": "execute"}])
    answers = 0
    while session.last["stopReason"] == "tool_use":
        answers += 1
        assert answers <= 2
        await session.post(*(result(c, "five") if c["name"] == "look_up" else permission(c, True) for c in session.pending_calls))
    assert session.text == "five True"


async def test_denied_call_is_an_error_result(running: RunningGateway) -> None:
    session = await SessionClient.create(running, "call look_up")
    await session.post({**permission(session.pending_calls[0], False), "reason": "not today"})
    assert session.text == "error: Tool call denied: not today"


async def test_user_message_instead_of_a_result_cancels_the_call(running: RunningGateway) -> None:
    session = await SessionClient.create(running, "call look_up")
    assert await session.send_turn("say else") == "else"
    assert await session.roles() == ["user", "assistant", "tool", "user", "assistant"]


async def test_changed_tools_apply_from_the_next_message_on(running: RunningGateway) -> None:
    session = await SessionClient.create(running, "say one")
    assert [tool[0] for tool in json.loads(await session.send_turn("tools", tools=[CLOCK]))] == ["get_time"]
    assert await session.send_turn("recall") == "say one | tools | recall"
    assert await session.send_turn("call look_up") == "error: Unknown tool 'look_up'; known are get_time."


async def test_meta_lists_the_application_capability(running: RunningGateway) -> None:
    agents = {agent["name"]: agent for agent in (await running.client.get("/meta")).json()["agents"]}
    assert "application" in agents["small"]["capabilities"]


async def test_call_that_is_pending_over_a_restart_cannot_be_answered(tmp_path: Path) -> None:
    """The agent cannot be given a history, so the result is rejected with 503 and the call stays pending."""
    config = gateway_config(tmp_path, agents={"small": small_agent(tmp_path)})
    async with run_gateway(config) as running:
        session = await SessionClient.create(running, "call look_up")
        call = session.pending_calls[0]
    async with run_gateway(config) as running:
        answer = await running.client.post(f"/session/{session.id}", json={"messages": [result(call, "late")]})
        assert (answer.status_code, "cannot be given a history" in answer.text) == (503, True)
        assert (await get_session(running.client, session.id))["state"] == "waiting"
