"""Which session a conversation continues, and when it gets a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.driver_info import ToolSpec
from drivers.contract.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from gateway.conversations.conversations import CANNOT_ASK, TOOLS_OFF, ConversationRequest
from gateway.errors import BadRequest, NotFound
from gateway.protocols.model_apis.answer import Answer, ShowTools
from gateway.security.authentication import ADMINISTRATOR, Caller
from gateway.sessions.session import Session
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import get_history, send_turn
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
WEATHER = ToolSpec("weather", "The weather.", {"type": "object"})
REMEMBER = {"remember": True}


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


class Talk:
    """A client: it sends its whole conversation, and keeps the answers."""

    def __init__(self, portico: RunningGateway, agent: str = "echo", caller: Caller = ADMINISTRATOR, **fields: Any) -> None:
        self._portico, self._agent, self._caller, self._fields = portico, agent, caller, fields
        self.messages: list[Message] = []
        self.sessions: list[Session] = []
        self.answer = Answer((), "off")

    async def say(self, *new: Message | str, show_tools: ShowTools = "off") -> str:
        """Send new messages, and return the text of the answer."""
        self.messages += [user(message) if isinstance(message, str) else message for message in new]
        return await self.send(self.messages, show_tools=show_tools)

    async def send(self, messages: Sequence[Message], *, show_tools: ShowTools = "off") -> str:
        request = ConversationRequest(agent=self._agent, messages=tuple(messages), **self._fields)
        turn = await self._portico.gateway.conversations.submit(self._caller, request)
        self.answer = Answer(turn.app_tools, show_tools)
        async for entries in turn.batches():
            self.answer.feed(entries)
        turn.answered(self.answer.message)
        self.messages = [*messages, self.answer.message]
        self.sessions.append(turn.session)
        return self.answer.text

    @property
    def continued(self) -> bool:
        """Whether the last request continued the session of the one before."""
        return self.sessions[-1] is self.sessions[-2]


def scripted(write_scenario: WriteScenario, *turns: Any) -> dict[str, str]:
    return {"scenario": write_scenario(*turns)}


async def test_a_conversation_continues_its_session(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    talk = Talk(portico)
    assert await talk.say(SystemMessage(content="Be brief."), "one") == "one"
    agent = talk.sessions[0].live
    assert await talk.say("two") == "two"
    assert talk.continued and talk.sessions[0].live is agent
    assert [m["role"] for m in await get_history(portico.client, talk.sessions[0].id)] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    # A client may change white space and divide an answer.
    talk = Talk(portico)
    await talk.say("one  two\nthree")
    changed = [AssistantMessage(content=" one two "), AssistantMessage(content="three\n")]
    await talk.send([talk.messages[0], *changed, user("next")])
    assert talk.continued
    # A session that another client has continued is left alone.
    talk = Talk(portico, "script", options=scripted(write_scenario, [REMEMBER]))
    await talk.say("one")
    await send_turn(portico.client, talk.sessions[0].id, "by AAP")
    assert await talk.say("two") == '["one"]'
    assert not talk.continued
    # A failed answer is not continued.
    failing = [{"text": "half"}, {"stop": {"reason": "error", "message": "the model is down"}}]
    talk = Talk(portico, "script", options=scripted(write_scenario, {"when": "^fail", "steps": failing}, [REMEMBER]))
    assert await talk.say("fail") == "half"
    assert (talk.answer.end, talk.answer.error) == ("error", "the model is down")
    await talk.say("two")
    assert not talk.continued
    # A conversation that cannot be answered is refused.
    for messages, problem in (
        ([], "the last message must be"),
        ([SystemMessage(content="Be brief.")], "the last message must be"),
        ([user("one"), AssistantMessage(content="two")], "the last message must be"),
        ([user("one"), ToolMessage(tool_call_id="x", content="two")], "no tool call 'x'"),
        ([user("   ")], "blank"),
    ):
        with pytest.raises(BadRequest, match=problem):
            await Talk(portico).send(messages)


async def test_edited_and_regenerated_messages_get_a_new_session(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    # An edited message gets a new session with the edited history.
    talk = Talk(portico, "script", options=scripted(write_scenario, [REMEMBER]))
    await talk.say("one")
    await talk.say("two")
    messages = list(talk.messages)
    messages[0] = user("ONE")
    assert await talk.send([*messages, user("three")]) == '["ONE", "two"]'
    assert not talk.continued
    # The original goes on too, in its own session.
    assert await talk.send([user("one"), *messages[1:], user("four")]) == '["one", "two"]'
    assert talk.sessions[-1] is talk.sessions[0]
    # A regenerated answer gets a new session.
    talk = Talk(portico, "script", options=scripted(write_scenario, [REMEMBER]))
    await talk.say("one")
    await talk.say("two")
    assert await talk.send(talk.messages[:3]) == '["one"]'
    assert not talk.continued
    # An edited message of a conversation that repeats itself gets a new session.
    options = scripted(write_scenario, {"when": "hi", "steps": [{"text": "hello"}]}, [REMEMBER])
    talk = Talk(portico, "script", options=options, name="chat 7")
    await talk.say("hi")
    await talk.say("hi")
    # The messages before are the beginning of the conversation, and its end.
    assert await talk.send([*talk.messages[:2], user("edited")]) == '["hi"]'
    assert not talk.continued


async def test_conversations_with_equal_beginnings_are_told_apart(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    # Two windows with equal beginnings have a session each.
    options = scripted(write_scenario, [REMEMBER])
    first, second = Talk(portico, "script", options=options), Talk(portico, "script", options=options)
    for talk in (first, second):
        await talk.say("same")
    assert first.messages == second.messages
    assert await first.say("mine") == '["same"]'
    assert await second.say("yours") == '["same"]'
    assert await first.say("again") == '["same", "mine"]'
    assert await second.say("again") == '["same", "yours"]'
    assert first.continued and second.continued and first.sessions[-1] is not second.sessions[-1]
    # A hint or a name tells apart conversations with equal messages.
    for fields in (({"hints": {"ann"}}, {"hints": {"bob"}}), ({"name": "chat 1"}, {"name": "chat 2"})):
        options = scripted(write_scenario, [REMEMBER])
        first, second = (Talk(portico, "script", options=options, **given) for given in fields)
        for talk in (first, second):
            await talk.say("same")
        await first.say("more")
        assert first.continued, fields
    # Another agent, option, key or system message is another conversation.
    known = set[str]()
    for change in ("agent", "options", "key", "system"):
        options = scripted(write_scenario, [{"text": "same"}])
        talk = Talk(portico, "script", options=options)
        await talk.say(SystemMessage(content="Be brief."), "one")
        other = Talk(portico, "script", options=options)
        if change == "agent":
            other = Talk(portico, "echo")
        elif change == "options":
            other = Talk(portico, "script", options={**options, "pace": "recorded"})
        elif change == "key":
            other = Talk(portico, "script", options=options, caller=Caller("other", all_sessions=False))
        system = SystemMessage(content="Be long." if change == "system" else "Be brief.")
        await other.send([system, *talk.messages[1:], user("two")])
        known.add(talk.sessions[0].id)
        assert other.sessions[0].id not in known, change


async def test_calls_that_the_client_does_not_take_are_refused(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    call = {"app_tool": {"id": "sky", "name": "weather"}}
    options = scripted(write_scenario, [{"text": "Looking."}, call, {"text": "{results.sky}"}])
    talk = Talk(portico, "script", options=options, tools=(WEATHER,), call_tools=False)
    assert await talk.say("Weather?", show_tools="text") == f"Looking.\n\n[weather]\n\n{TOOLS_OFF}"
    assert (talk.answer.end, talk.answer.calls) == ("stop", [])
    agent = talk.sessions[0].live
    taking = Talk(portico, "script", options=options, tools=(WEATHER,))
    await taking.send([*talk.messages, user("Once more")])
    assert taking.answer.end == "tool_calls"
    assert taking.sessions[0] is talk.sessions[0] and taking.sessions[0].live is agent


async def test_results_that_do_not_resume_a_run_get_a_new_session(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    # Results with a message after them get a new session.
    call = {"app_tool": {"id": "sky", "name": "weather"}}
    options = scripted(write_scenario, {"when": "Weather", "steps": [call]}, {"when": "too", "steps": [REMEMBER]})
    talk = Talk(portico, "script", options=options, tools=(WEATHER,))
    await talk.say("Weather?")
    assert await talk.say(ToolMessage(tool_call_id="sky", content="sun"), "And this too") == '["Weather?"]'
    assert not talk.continued
    roles = [m["role"] for m in await get_history(portico.client, talk.sessions[-1].id)]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    # Results of a conversation that is not known are taken.
    options = scripted(write_scenario, [{"app_tool": {"id": "sky", "name": "weather"}}, {"text": "{results.sky}"}])
    first, second = (Talk(portico, "script", options=options, tools=(WEATHER,)) for _ in range(2))
    await first.say("Weather?")
    messages = [*first.messages, ToolMessage(tool_call_id="sky", content="sun")]
    assert await first.send(messages) == "sun"
    assert await second.send(messages) == "sun"
    assert second.sessions[0] is not first.sessions[0]
    # Results of a run that was cancelled get a new session.
    call = {"app_tool": {"id": "sky", "name": "weather", "input": {}}}
    talk = Talk(portico, "script", options=scripted(write_scenario, [call, {"text": "done"}]), tools=(WEATHER,))
    await talk.say("one")
    assert talk.sessions[0].state == "waiting"
    await talk.sessions[0].cancel()
    await talk.say(ToolMessage(tool_call_id="sky", content="sun"))
    assert talk.answer.end == "stop" and not talk.continued


async def test_a_session_whose_agent_sleeps_is_continued(tmp_path: Path, write_scenario: WriteScenario) -> None:
    options = scripted(write_scenario, [REMEMBER])
    async with run_gateway(gateway_config(tmp_path, limits={"sleep_after": 0.05})) as portico:
        talk = Talk(portico, "script", options=options)
        await talk.say("one")
        name = talk.sessions.pop().id
        while (await portico.gateway.metrics_snapshot()).live_agents:
            await portico.client.get("/healthz")
        assert await talk.say("two") == '["one"]'
        assert talk.sessions[-1].id == name


async def test_a_client_that_sends_the_newest_messages_only_is_recognized_by_its_name_of_the_conversation(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    options = scripted(write_scenario, [REMEMBER])
    talk = Talk(portico, "script", options=options, name="chat 7")
    await talk.say("one")
    await talk.say("two")
    assert await talk.send([*talk.messages[2:], user("three")]) == '["one", "two"]'
    assert talk.continued
    for fields in ({"name": "chat 8"}, {"hints": frozenset({"chat 7"})}):
        other = Talk(portico, "script", options=options, **fields)
        assert await other.send([*talk.messages[-2:], user("four")]) == '["three"]'
    # A request with the name and without any answer is another conversation, such as one for a title.
    assert await talk.send([user("Write a title.")]) == "[]"
    assert not talk.continued


async def test_a_session_is_continued_by_its_id(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    options = scripted(write_scenario, [REMEMBER])
    talk = Talk(portico, "script", options=options)
    await talk.say("one")
    named = Talk(portico, "script", options=options, session_id=talk.sessions[0].id)
    assert await named.send([user("two")]) == '["one"]'
    assert named.sessions[0] is talk.sessions[0]
    assert await named.send([user("something else"), AssistantMessage(content="?"), user("three")]) == '["something else"]'
    assert not named.continued
    with pytest.raises(NotFound):
        await Talk(portico, "script", session_id="sess_none").send([user("one")])
    with pytest.raises(BadRequest, match="is of agent 'script'"):
        await Talk(portico, "echo", session_id=talk.sessions[0].id).send([user("one")])
    with pytest.raises(NotFound):
        stranger = Caller("other", all_sessions=False)
        await Talk(portico, "script", caller=stranger, session_id=talk.sessions[0].id).send([user("one")])
    # A session that is named has the options of the request.
    options = scripted(write_scenario, [REMEMBER])
    talk = Talk(portico, "script", options=options)
    await talk.say("one")
    named = Talk(portico, "script", options={**options, "pace": "fast"}, session_id=talk.sessions[0].id)
    assert await named.send([user("two")]) == '["one"]'
    assert named.sessions[0] is talk.sessions[0] and named.sessions[0].config.options["pace"] == "fast"
    # A conversation that names a session is the whole session.
    options = scripted(write_scenario, [REMEMBER])
    first = Talk(portico, "script", options=options)
    await first.say(SystemMessage(content="A"), "secret")
    named = Talk(portico, "script", options=options, session_id=first.sessions[0].id)
    answer = await named.send([user("hello")])
    assert named.sessions[0] is first.sessions[0]
    other = Talk(portico, "script", options=options)
    assert await other.send([user("hello"), AssistantMessage(content=answer), user("next")]) == '["hello"]'
    await named.send([SystemMessage(content="B"), user("hello"), AssistantMessage(content=answer), user("more")])
    assert named.continued
    changed = Talk(portico, "script", options=options)
    await changed.send([*named.messages, user("next")])
    assert changed.sessions[0] is not first.sessions[0], "its agent has another system message"


async def test_what_would_ask_is_denied_and_said(tmp_path: Path, write_scenario: WriteScenario) -> None:
    call = {"tool_call": {"id": "sh", "name": "shell", "input": {"command": "ls"}, "result": "files"}}
    options = scripted(write_scenario, [call, {"text": "done"}])
    async with run_gateway(gateway_config(tmp_path, openai={"tools": "agent"})) as portico:
        talk = Talk(portico, "script", options=options)
        assert await talk.say("go", show_tools="text") == (
            f'[shell {{"command":"ls"}}]\n\n[shell failed: Tool call denied: {CANNOT_ASK}]\n\ndone'
        )
        assert talk.answer.end == "stop"
        await talk.say("go on")
        assert talk.continued


async def test_denials_wait_for_the_results_of_calls_beside_them(tmp_path: Path, write_scenario: WriteScenario) -> None:
    calls = {
        "parallel": [
            {"tool_call": {"id": "sh", "name": "shell", "input": {"command": "ls"}, "result": "files"}},
            {"app_tool": {"id": "sky", "name": "weather"}},
        ]
    }
    options = scripted(write_scenario, [calls, {"text": "{results.sky}"}])
    async with run_gateway(gateway_config(tmp_path, openai={"tools": "agent"})) as portico:
        talk = Talk(portico, "script", options=options, tools=(WEATHER,))
        await talk.say("go")
        assert (talk.answer.end, [call.id for call in talk.answer.calls]) == ("tool_calls", ["sky"])
        assert await talk.say(ToolMessage(tool_call_id="sky", content="sun")) == "sun"
        assert talk.continued


async def test_results_that_come_too_late_get_a_new_session(tmp_path: Path, write_scenario: WriteScenario) -> None:
    options = scripted(write_scenario, [{"app_tool": {"id": "sky", "name": "weather"}}, {"text": "{results.sky}"}])
    async with run_gateway(gateway_config(tmp_path, limits={"answer": 0.05})) as portico:
        talk = Talk(portico, "script", options=options, tools=(WEATHER,))
        await talk.say("Weather?")
        run = talk.sessions[0].run
        assert run is not None
        await run.wait()
        assert await talk.say(ToolMessage(tool_call_id="sky", content="sun")) == "sun"
        assert not talk.continued


async def test_a_client_that_disconnects_before_a_call_is_refused_cancels_the_run(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    call = {"tool_call": {"id": "sh", "name": "shell", "input": {"command": "ls"}, "result": "files"}}
    options = scripted(write_scenario, [call, {"hang": {}}])
    async with run_gateway(gateway_config(tmp_path, openai={"tools": "agent"})) as portico:
        for refusing in (False, True):
            request = ConversationRequest(agent="script", messages=(user("one"),), options=options)
            turn = await portico.gateway.conversations.submit(ADMINISTRATOR, request)
            batches = turn.batches()
            await wait_until(lambda turn=turn: turn.session.state == "waiting")
            await anext(batches)
            if refusing:
                async with turn.session.lock:
                    reading = asyncio.ensure_future(anext(batches))
                    await asyncio.sleep(0)
                    reading.cancel()
                    turn.abandon()
            else:
                turn.abandon()
            await wait_until(lambda turn=turn: turn.session.state == "idle")


async def test_the_session_of_a_background_request_is_deleted_with_its_answer(portico: RunningGateway) -> None:
    talk = Talk(portico, "script", background=True)
    await talk.say("Write a title.")
    await wait_until(lambda: talk.sessions[0].deleted and talk.sessions[0].live is None)
    await talk.say("Another one.")
    assert talk.sessions[0].id != talk.sessions[1].id


async def test_a_tool_may_have_the_name_of_one_of_the_agent_that_is_off(tmp_path: Path, write_scenario: WriteScenario) -> None:
    shell = ToolSpec("shell", "Runs a command elsewhere.", {"type": "object"})
    options = scripted(write_scenario, [{"app_tool": {"id": "there", "name": "shell"}}, {"text": "{results.there}"}])
    async with run_gateway(gateway_config(tmp_path)) as portico:
        talk = Talk(portico, "script", options=options, tools=(shell,))
        await talk.say("Run it")
        assert [call.name for call in talk.answer.calls] == ["shell"]
        assert await talk.say(ToolMessage(tool_call_id="there", content="ran")) == "ran"
    async with run_gateway(gateway_config(tmp_path, openai={"tools": "agent"})) as portico:
        with pytest.raises(BadRequest, match="the name 'shell' is taken"):
            await Talk(portico, "script", options=options, tools=(shell,)).say("Run it")
