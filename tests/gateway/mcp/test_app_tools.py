"""Application-side tools on an agent that takes them by MCP, over HTTP and over the bridge: an agent of the tests with the
protocols' official packages, behind a gateway.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import RunningGateway, gateway_config, run_gateway
from tests.gateway.cli.test_acp import small_agent

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


class Talk:
    """One session; `last` is the newest answer."""

    def __init__(self, running: RunningGateway, made: dict[str, Any]) -> None:
        self.client, self.id, self.last = running.client, made["sessionId"], made

    @classmethod
    async def begin(cls, running: RunningGateway, text: str, tools: Any = (LOOKUP,), own: Any = ()) -> Talk:
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
        """The newest text."""
        content = self.last["messages"][-1]["content"]
        return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)

    @property
    def open(self) -> list[dict[str, Any]]:
        assert self.last["stopReason"] == "tool_use", self.last
        return [block for block in self.last["messages"][-1]["content"] if block["type"] == "tool_use"]

    async def roles(self) -> list[str]:
        history = (await self.client.get(f"/session/{self.id}")).json()["history"]["full"]
        return [message["role"] for message in history]


def result(call: dict[str, Any], content: Any) -> dict[str, Any]:
    return {"role": "tool", "toolCallId": call["toolCallId"], "content": content}


def permission(call: dict[str, Any], granted: bool) -> dict[str, Any]:
    return {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": granted}


async def test_the_tools_are_listed(running: RunningGateway) -> None:
    talk = await Talk.begin(running, "tools", [LOOKUP, CLOCK])
    assert json.loads(talk.text) == [[tool["name"], tool["description"], tool["inputSchema"]] for tool in (LOOKUP, CLOCK)]
    # None are offered to a session that has none.
    assert (await Talk.begin(running, "tools", [])).text == "[]"


async def test_a_call_and_its_result(running: RunningGateway) -> None:
    talk = await Talk.begin(running, 'call look_up {"n": 5}')
    (call,) = talk.open
    assert (call["name"], call["input"], talk.text) == ("look_up", {"n": 5}, "Calling. ")
    answer = await talk.post(result(call, "five"))
    assert (answer["stopReason"], answer["messages"]) == ("end_turn", [{"role": "assistant", "content": "five"}])
    assert await talk.roles() == ["user", "assistant", "tool", "assistant"]
    await talk.send_turn("call look_up")
    assert talk.open[0]["input"] == {}
    await talk.post(result(talk.open[0], [{"type": "text", "text": "a map"}, {"type": "image", "url": PIXEL}]))
    assert talk.text == f"a map, image of {len(PIXEL.partition(',')[2])}"


async def test_a_result_of_five_megabytes(running: RunningGateway) -> None:
    talk = await Talk.begin(running, "call look_up")
    await talk.post(result(talk.open[0], "x" * 5_000_000))
    assert talk.text == "5000000 long"


@pytest.mark.parametrize("how", ["reported", "made"])
async def test_twenty_calls_are_one_stop_and_one_answer(running: RunningGateway, how: str) -> None:
    """Made at once, or one after the other but reported beforehand."""
    talk = await Talk.begin(running, f"many 20 look_up {how}")
    calls = talk.open
    assert sorted(call["input"]["n"] for call in calls) == list(range(20))
    partly = await running.client.post(f"/session/{talk.id}", json={"messages": [result(calls[0], "0")]})
    assert partly.status_code == 400 and calls[1]["toolCallId"] in partly.text
    await talk.post(*(result(call, f"result {call['input']['n']}") for call in reversed(calls)))
    assert talk.text == " | ".join(f"result {n}" for n in range(20))
    assert len(set(call["toolCallId"] for call in calls)) == 20


async def test_an_agent_that_tells_nothing_of_its_calls(running: RunningGateway) -> None:
    talk = await Talk.begin(running, "silent look_up")
    await talk.post(result(talk.open[0], "quiet"))
    assert talk.text == "quiet"
    assert await talk.roles() == ["user", "assistant", "tool", "assistant"]


async def test_nobody_is_asked_for_leave(running: RunningGateway) -> None:
    talk = await Talk.begin(running, "ask look_up")
    (call,) = talk.open
    assert (call["name"], call["input"]) == ("look_up", {"a": 1})
    await talk.post(result(call, "asked"))
    assert talk.text == "asked"
    # A tool that is not the application's has no such leave.
    assert await talk.send_turn("ask no_such_tool") == "not called"


async def test_beside_a_call_of_its_own(running: RunningGateway) -> None:
    talk = await Talk.begin(running, "mixed look_up", own=[{"name": "execute"}])
    answers = 0
    while talk.last["stopReason"] == "tool_use":
        answers += 1
        assert answers <= 2
        await talk.post(*(result(c, "five") if c["name"] == "look_up" else permission(c, True) for c in talk.open))
    assert talk.text == "five True"


async def test_a_denied_call_is_an_error_to_the_model(running: RunningGateway) -> None:
    talk = await Talk.begin(running, "call look_up")
    await talk.post({**permission(talk.open[0], False), "reason": "not today"})
    assert talk.text == "error: Tool call denied: not today"


async def test_a_user_message_in_place_of_a_result(running: RunningGateway) -> None:
    talk = await Talk.begin(running, "call look_up")
    assert await talk.send_turn("say else") == "else"
    assert await talk.roles() == ["user", "assistant", "tool", "user", "assistant"]


async def test_other_tools_from_the_next_message_on(running: RunningGateway) -> None:
    talk = await Talk.begin(running, "say one")
    assert [tool[0] for tool in json.loads(await talk.send_turn("tools", tools=[CLOCK]))] == ["get_time"]
    assert await talk.send_turn("recall") == "say one | tools | recall"
    assert await talk.send_turn("call look_up") == "error: Unknown tool 'look_up'; known are get_time."


async def test_meta_says_so(running: RunningGateway) -> None:
    agents = {agent["name"]: agent for agent in (await running.client.get("/meta")).json()["agents"]}
    assert "application" in agents["small"]["capabilities"]


async def test_the_daemon_ends_while_a_call_is_open(tmp_path: Path) -> None:
    """The agent's processes and the listener end with it, and the answer comes too late for this agent, which says so."""
    config = gateway_config(tmp_path, agents={"small": small_agent(tmp_path)})
    async with run_gateway(config) as running:
        talk = await Talk.begin(running, "call look_up")
        call = talk.open[0]
    async with run_gateway(config) as running:
        answer = await running.client.post(f"/session/{talk.id}", json={"messages": [result(call, "late")]})
        assert (answer.status_code, "cannot be given a history" in answer.text) == (503, True)
        assert (await running.client.get(f"/session/{talk.id}")).json()["state"] == "waiting"
