"""What follows an earlier answer: its session if it is the last one there, else a session of its own with the history."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.messages import AssistantMessage, Message, SystemMessage, ToolMessage
from gateway.conversations.conversations import ConversationRequest, EarlierAnswer
from gateway.errors import BadRequest
from gateway.protocols.model_apis.answer import Answer
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Session
from tests.gateway.conversations.test_conversations import REMEMBER, WEATHER, Talk, WriteScenario, scripted, user
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import get_history


class Chain:
    """A client that sends its newest messages only, and names the answer that they follow."""

    def __init__(self, portico: RunningGateway, agent: str = "script", **fields: Any) -> None:
        self._portico, self._agent, self._fields = portico, agent, fields
        self.session: Session | None = None

    async def say(self, *new: Message | str, after: EarlierAnswer | None = None, **fields: Any) -> tuple[str, EarlierAnswer]:
        """Send messages, and return the text of the answer, and the answer."""
        messages = tuple(user(message) if isinstance(message, str) else message for message in new)
        request = ConversationRequest(agent=self._agent, **{**self._fields, "messages": messages, "after": after, **fields})
        turn = await self._portico.gateway.conversations.submit(ADMINISTRATOR, request)
        answer, last = Answer(turn.app_tools, "off"), 0
        async for entries in turn.batches():
            answer.feed(entries)
            last = entries[-1].seq
        turn.answered(answer.message)
        self.session = turn.session
        return answer.text, EarlierAnswer(turn.session.id, turn.session.agent.name, last)


async def test_the_last_answer_of_a_session_is_followed_in_it(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    chain = Chain(portico, options=scripted(write_scenario, [REMEMBER]))
    _, first = await chain.say("one")
    text, second = await chain.say("two", after=first)
    assert (text, second.session_id) == ('["one"]', first.session_id)
    text, third = await chain.say("three", after=second, options={**scripted(write_scenario, [REMEMBER]), "pace": "fast"})
    assert (text, third.session_id) == ('["one", "two"]', first.session_id), "other options are those of the session from now on"
    # The other options of a session stay.
    chain = Chain(portico, options=scripted(write_scenario, [REMEMBER]))
    _, first = await chain.say("one")
    assert chain.session is not None
    # By another protocol, which is no turn.
    async with chain.session.lock:
        changed = {**chain.session.config.options, "pace": "fast"}
        await chain.session.configure(replace(chain.session.config, options=changed))
    _, second = await chain.say("two", after=first)
    assert second.session_id == first.session_id and chain.session.config.options == changed
    # An earlier answer is followed in a session of its own.
    chain = Chain(portico, options=scripted(write_scenario, [REMEMBER]))
    _, first = await chain.say("one")
    _, second = await chain.say("two", after=first)
    text, branch = await chain.say("TWO", after=first)
    assert text == '["one"]' and branch.session_id != first.session_id
    text, _ = await chain.say("THREE", after=branch)
    assert text == '["one", "TWO"]'
    text, third = await chain.say("three", after=second)
    assert (text, third.session_id) == ('["one", "two"]', first.session_id)
    # Both of two requests that follow one answer are answered.
    chain = Chain(portico, options=scripted(write_scenario, [REMEMBER]))
    _, first = await chain.say("one")
    found = await asyncio.gather(chain.say("a", after=first), chain.say("b", after=first))
    assert [text for text, _ in found] == ['["one"]', '["one"]']
    assert len({answer.session_id for _, answer in found}) == 2


async def test_the_system_message_of_an_earlier_answer_is_replaced(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    chain = Chain(portico, options=scripted(write_scenario, [REMEMBER]))
    _, first = await chain.say(SystemMessage(content="Be brief."), "one")
    same = replace(first, system_before="Be brief.", system_now="Be brief.")
    _, second = await chain.say("two", after=same)
    assert second.session_id == first.session_id
    for now in ("Be long.", None):
        text, other = await chain.say("three", after=replace(second, system_before="Be brief.", system_now=now))
        assert text == '["one", "two"]' and other.session_id != first.session_id
        history = await get_history(portico.client, other.session_id)
        assert [m["content"] for m in history if m["role"] == "system"] == ([now] if now else [])


async def test_calls_of_an_earlier_answer_are_answered_in_its_run_or_in_a_session_of_its_own(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    call = {"app_tool": {"id": "sky", "name": "weather"}}
    chain = Chain(portico, options=scripted(write_scenario, [call, {"text": "{results.sky}"}]), tools=(WEATHER,))
    _, asked = await chain.say("Weather?")
    with pytest.raises(BadRequest, match="'sky' has no result"):
        await chain.say("Well?", after=asked)
    with pytest.raises(BadRequest, match="no tool call 'see'"):
        await chain.say(ToolMessage(tool_call_id="see", content="sun"), after=asked)
    text, told = await chain.say(ToolMessage(tool_call_id="sky", content="sun"), after=asked)
    assert (text, told.session_id) == ("sun", asked.session_id)
    text, again = await chain.say(ToolMessage(tool_call_id="sky", content="rain"), after=asked)
    assert text == "rain" and again.session_id != asked.session_id
    # Both of two requests with results of one call are answered.
    call = {"app_tool": {"id": "sky", "name": "weather"}}
    chain = Chain(portico, options=scripted(write_scenario, [call, {"text": "{results.sky}"}]), tools=(WEATHER,))
    _, asked = await chain.say("Weather?")
    results = [ToolMessage(tool_call_id="sky", content=text) for text in ("sun", "rain")]
    found = await asyncio.gather(*(chain.say(result, after=asked) for result in results))
    assert [text for text, _ in found] == ["sun", "rain"]
    assert len({answer.session_id for _, answer in found}) == 2


async def test_permissions_that_wait_beside_results_are_denied_with_them(tmp_path: Path, write_scenario: WriteScenario) -> None:
    shell = {"tool_call": {"id": "sh", "name": "shell", "input": {"command": "ls"}, "result": "files"}}
    calls = {"parallel": [shell, {"app_tool": {"id": "sky", "name": "weather"}}]}
    options = scripted(write_scenario, [calls, {"text": "{results.sky}"}])
    async with run_gateway(gateway_config(tmp_path, openai={"tools": "agent"})) as portico:
        chain = Chain(portico, options=options, tools=(WEATHER,))
        _, asked = await chain.say("go")
        text, told = await chain.say(ToolMessage(tool_call_id="sky", content="sun"), after=asked)
        assert (text, told.session_id) == ("sun", asked.session_id)
        text, again = await chain.say(ToolMessage(tool_call_id="sky", content="rain"), after=asked)
        assert text == "rain" and again.session_id != asked.session_id


async def test_conversations_with_and_without_ids(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    # A client without ids continues its own session beside an equal one.
    options = scripted(write_scenario, [REMEMBER])
    talk, chain = Talk(portico, "script", options=options), Chain(portico, options=options, by_id=True)
    await talk.say("one")
    _, first = await chain.say("one")
    await talk.say("two")
    assert talk.continued
    _, second = await chain.say("two", after=first)
    assert second.session_id == first.session_id
    await talk.say("three")
    assert talk.continued
    # A whole conversation continues the session of an earlier answer.
    options = scripted(write_scenario, [REMEMBER])
    chain = Chain(portico, options=options)
    text, first = await chain.say("one")
    other, _ = await chain.say("two", after=first)
    talk = Talk(portico, "script", options=options)
    whole = [user("one"), AssistantMessage(content=text), user("two"), AssistantMessage(content=other), user("three")]
    assert await talk.send(whole) == '["one", "two"]'
    assert talk.sessions[0].id == first.session_id
    # One message of a chain is not the whole of a conversation.
    assert await talk.send([user("two"), AssistantMessage(content=other), user("three")]) == '["two"]'
