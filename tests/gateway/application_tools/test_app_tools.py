"""Application-side tools that an agent calls by MCP, over HTTP and over the bridge. The agent is tests/support/acp_agent.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.gateway.cli.test_acp import small_agent
from tests.support.aap_client import AapClient, calls_of, text_of
from tests.support.daemon import gateway_config, run_gateway
from tests.support.requests import expect_error

LOOKUP = {
    "name": "look_up",
    "description": "Looks up.",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
}
CLOCK = {"name": "get_time", "description": "The time.", "inputSchema": {"type": "object"}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@asynccontextmanager
async def serving(folder: Path, transport: str = "http") -> AsyncIterator[AapClient]:
    """Run a gateway with the small ACP agent, which reaches its tools over HTTP or over the bridge."""
    agent = small_agent(folder)
    agent["env"]["ACP_AGENT_FLAGS"] = transport if transport == "http" else ""
    async with run_gateway(gateway_config(folder, agents={"small": agent})) as found:
        yield AapClient(found.client)


class Talk:
    """A session with application-side tools; `last` is the newest answer."""

    def __init__(self, aap: AapClient, made: dict[str, Any]) -> None:
        self._aap, self.id, self.last = aap, made["sessionId"], made

    @classmethod
    async def begin(cls, aap: AapClient, text: str, tools: Any = (LOOKUP,), own: Any = ()) -> Talk:
        return cls(aap, await aap.create_session("small", text, tools=list(tools), grants=list(own)))

    async def say(self, *messages: Any, **fields: Any) -> str:
        """Send messages, and return the text of the answer."""
        self.last = await self._aap.send_turn(self.id, *messages, **fields)
        return self.text

    async def give(self, content: Any) -> str:
        """Answer the one pending call, and return the text of the answer."""
        [call] = self.pending
        return await self.say(result(call, content))

    @property
    def text(self) -> str:
        return text_of(self.last["messages"][-1:])

    @property
    def pending(self) -> list[dict[str, Any]]:
        assert self.last["stopReason"] == "tool_use", self.last
        return calls_of(self.last)

    async def roles(self) -> list[str]:
        return [message["role"] for message in await self._aap.get_history(self.id)]


def result(call: dict[str, Any], content: Any) -> dict[str, Any]:
    return {"role": "tool", "toolCallId": call["toolCallId"], "content": content}


def permission(call: dict[str, Any], granted: bool, **reason: str) -> dict[str, Any]:
    return {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": granted, **reason}


async def call_and_answer(aap: AapClient) -> None:
    """The tools are listed, a call stops the turn, and its result, of any kind and size, reaches the agent."""
    listing = await Talk.begin(aap, "tools", [LOOKUP, CLOCK])
    assert json.loads(listing.text) == [[tool["name"], tool["description"], tool["inputSchema"]] for tool in (LOOKUP, CLOCK)]
    talk = await Talk.begin(aap, 'call look_up {"n": 5}')
    [call] = talk.pending
    assert (call["name"], call["input"], talk.text) == ("look_up", {"n": 5}, "Calling. ")
    assert (await talk.give("five"), talk.last["stopReason"]) == ("five", "end_turn")
    assert await talk.roles() == ["user", "assistant", "tool", "assistant"]
    await talk.say("call look_up")
    assert talk.pending[0]["input"] == {}
    text = await talk.give([{"type": "text", "text": "a map"}, {"type": "image", "url": PIXEL}])
    assert text == f"a map, image of {len(PIXEL.partition(',')[2])}"
    await talk.say("call look_up")
    assert await talk.give("x" * 5_000_000) == "5000000 long"


async def many_calls(aap: AapClient, how: str) -> None:
    """Twenty calls are answered in one request. `made` calls are made at once; `reported` ones are reported beforehand."""
    talk = await Talk.begin(aap, f"many 20 look_up {how}")
    calls = talk.pending
    assert sorted(call["input"]["n"] for call in calls) == list(range(20))
    assert len({call["toolCallId"] for call in calls}) == 20
    partly = await expect_error(aap.post(talk.id, {"messages": [result(calls[0], "0")]}), 400)
    assert calls[1]["toolCallId"] in partly
    text = await talk.say(*(result(call, f"result {call['input']['n']}") for call in reversed(calls)))
    assert text == " | ".join(f"result {n}" for n in range(20))


async def test_calls_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path) as aap:
        await call_and_answer(aap)
        for how in ("reported", "made"):
            await many_calls(aap, how)
        # A session without tools lists none, and /meta says which agents take them.
        assert (await Talk.begin(aap, "tools", [])).text == "[]"
        agents = {agent["name"]: agent for agent in (await aap.http.get("/meta")).json()["agents"]}
        assert "application" in agents["small"]["capabilities"]


async def test_calls_over_the_bridge(tmp_path: Path) -> None:
    async with serving(tmp_path, "bridge") as aap:
        await call_and_answer(aap)
        await many_calls(aap, "made")
        denied = await Talk.begin(aap, "call look_up")
        text = await denied.say(permission(denied.pending[0], False, reason="not today"))
        assert text == "error: Tool call denied: not today"


async def test_a_call_that_is_denied_cancelled_or_not_reported(tmp_path: Path) -> None:
    async with serving(tmp_path) as aap:
        talk = await Talk.begin(aap, "silent look_up")
        assert await talk.give("result") == "result"
        assert await talk.roles() == ["user", "assistant", "tool", "assistant"]
        await talk.say("call look_up")
        text = await talk.say(permission(talk.pending[0], False, reason="not today"))
        assert text == "error: Tool call denied: not today"
        await talk.say("call look_up")
        assert await talk.say("say else") == "else", "a user message instead of a result cancels the call"
        assert (await talk.roles())[-4:] == ["assistant", "tool", "user", "assistant"]
        # Changed tools apply from the next message on.
        assert [tool[0] for tool in json.loads(await talk.say("tools", tools=[CLOCK]))] == ["get_time"]
        assert await talk.say("call look_up") == "error: Unknown tool 'look_up'; known are get_time."


async def test_permission_request_before_the_call_is_decided_by_the_client(tmp_path: Path) -> None:
    """The agent could run anything under a title: only a request over MCP is a call of the tool."""
    async with serving(tmp_path) as aap:
        talk = await Talk.begin(aap, "ask look_up", own=[{"name": "other"}])
        [asked] = talk.pending
        assert (asked["name"], asked["input"]) == ("other", {"a": 1})
        await talk.say(permission(asked, True))
        [call] = talk.pending
        assert (call["name"], call["input"]) == ("look_up", {"a": 1})
        assert await talk.give("asked") == "asked"
        await talk.say("ask look_up")
        assert await talk.say(permission(talk.pending[0], False)) == "not called"
        # Its program names the tool: the application runs that, so it needs no permission.
        await talk.say("ask look_up named")
        [call] = talk.pending
        assert (call["name"], call["input"]) == ("look_up", {"a": 1})
        assert await talk.give("named") == "named"
        # One of a kind that is not listed is rejected.
        unlisted = await Talk.begin(aap, "ask look_up")
        assert unlisted.text == "not called"
        assert await unlisted.say("ask no_such_tool named") == "not called"


async def test_application_call_and_own_call_of_the_agent_in_parallel(tmp_path: Path) -> None:
    async with serving(tmp_path) as aap:
        talk = await Talk.begin(aap, "mixed look_up", own=[{"name": "execute"}])
        answers = 0
        while talk.last["stopReason"] == "tool_use":
            answers += 1
            assert answers <= 2
            await talk.say(*(result(c, "five") if c["name"] == "look_up" else permission(c, True) for c in talk.pending))
        assert talk.text == "five True"


async def test_result_of_a_call_that_is_pending_over_a_restart_is_in_the_history(tmp_path: Path) -> None:
    """The agent cannot be given a history in its own way: it gets that as text."""
    async with serving(tmp_path) as aap:
        talk = await Talk.begin(aap, "call look_up")
    async with serving(tmp_path) as aap:
        (call,) = talk.pending
        answer = await aap.post(talk.id, {"messages": [result(call, "late")]})
        told = json.dumps({"role": "tool", "result_of": call["toolCallId"], "text": "late"}, separators=(",", ":"))
        assert answer.status_code == 200 and told in answer.json()["messages"][-1]["content"][-1]["text"]
