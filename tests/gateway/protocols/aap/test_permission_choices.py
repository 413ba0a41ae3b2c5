"""Choices about a pending call: `x-portico` of a `tool_permission` message, with the CLI's own choices and the gateway's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.aap_client import AapClient
from tests.support.daemon import RunningGateway
from tests.support.requests import expect_error
from tests.support.sse import parse_frames

OWN = [
    {"id": "rule:0", "name": "Always allow git", "kind": "allow_always"},
    {"id": "later", "name": "Not now", "kind": "reject_once"},
]
LASTING = OWN[:1]
NOTE = {"tool_call": {"id": "note-{turn}", "name": "write_note", "input": {"path": "a.txt", "text": "x"}}}


def asks(choices: list[dict[str, str]]) -> dict[str, Any]:
    return {"tool_call": {"id": "git", "name": "git", "input": {"command": "git push"}, "choices": choices}}


def permission(call: str, choice: str, granted: bool = True, **more: Any) -> dict[str, Any]:
    return {"role": "tool_permission", "toolCallId": call, "granted": granted, "x-portico": {"choice": choice}, **more}


WriteScenario = Callable[..., str]


async def start(aap: AapClient, write_scenario: WriteScenario, *steps: Any, **fields: Any) -> str:
    """Create a session whose turns have these steps, and return its id; its first turn waits for the client."""
    answer = await aap.create_session(options={"scenario": write_scenario([*steps])}, **fields)
    assert answer["stopReason"] == "tool_use", answer
    return str(answer["sessionId"])


async def test_choice_of_the_cli_gets_to_the_cli(aap: AapClient, write_scenario: WriteScenario) -> None:
    for choices, choice, granted in ((OWN, "rule:0", True), (OWN, "later", False), (LASTING, "rule:0", True)):
        session = await start(aap, write_scenario, asks(choices), {"text": "chosen: {choices.git}"})
        answer = await aap.send_turn(session, permission("git", choice, granted))
        assert answer["stopReason"] == "end_turn", (choices, choice)
        assert str(answer["messages"][-1]["content"]).endswith(choice), (choices, choice)
        result = answer["messages"][0]["content"]
        assert result == ("done" if granted else "Tool call denied"), (choices, choice)
    # Choices of the CLI may be all there are.
    session = await start(aap, write_scenario, asks(OWN), {"text": "end"})
    text = await expect_error(aap.post(session, {"messages": [permission("git", "allow_always")]}), 400)
    assert "it has 'rule:0', 'later'" in text


async def test_choice_always_and_never_about_a_tool(aap: AapClient, write_scenario: WriteScenario) -> None:
    # Choice always trusts the tool in the session.
    session = await start(aap, write_scenario, NOTE, {"text": "end"}, grants=[{"name": "write_note"}, {"name": "lookup"}])
    await aap.send_turn(session, permission("note-1", "allow_always"))
    tools = (await aap.get_session(session))["agent"]["tools"]
    assert tools == [{"name": "write_note", "trust": True}, {"name": "lookup", "trust": False}]
    # The next call runs without asking.
    assert (await aap.send_turn(session, "again"))["stopReason"] == "end_turn"
    # Choice never disables the tool.
    session = await start(aap, write_scenario, NOTE, {"text": "{last_result}"}, grants=[{"name": "write_note"}])
    answer = await aap.send_turn(session, permission("note-1", "reject_always", granted=False, reason="no notes"))
    assert answer["messages"][0]["content"] == "Tool call denied: no notes"
    assert (await aap.get_session(session))["agent"]["tools"] == []
    answer = await aap.send_turn(session, "again")
    assert "not enabled" in answer["messages"][-1]["content"]


async def test_choice_trusts_a_tool_that_the_agent_does_not_list(aap: AapClient, write_scenario: WriteScenario) -> None:
    """As one of an MCP server of the CLI's own. The session goes on, can be forked, and takes back the tools that it reports."""
    asked = {"tool_call": {"id": "call-1", "name": "mcp__notes__add", "ask": True}}
    scenario = write_scenario([asked, {"text": "end"}], [{"text": "end"}], [{"text": "end"}])
    session = (await aap.create_session(options={"scenario": scenario}))["sessionId"]
    await aap.send_turn(session, permission("call-1", "allow_always"))
    tools = (await aap.get_session(session))["agent"]["tools"]
    assert tools == [{"name": "mcp__notes__add", "trust": True}]
    assert (await aap.send_turn(session, "again"))["stopReason"] == "end_turn"
    same = await aap.post(session, {"agent": {"tools": tools}, "messages": [{"role": "user", "content": "third"}]})
    assert same.status_code == 200, same.text
    other = [*tools, {"name": "mcp__notes__remove", "trust": True}]
    refused = aap.post(session, {"agent": {"tools": other}, "messages": [{"role": "user", "content": "fourth"}]})
    assert "no tool 'mcp__notes__remove'" in await expect_error(refused, 400)
    assert (await aap.http.post(f"{aap.path(session)}/fork", json={})).status_code == 201


async def test_wrong_choice_is_refused_and_changes_nothing(aap: AapClient, write_scenario: WriteScenario) -> None:
    for choice, granted, words in (
        ("allow_once", False, ["'allow_once' grants the call", "granted is false"]),
        ("reject_once", True, ["'reject_once' rejects the call", "granted is true"]),
        ("nonsense", True, ["no choice 'nonsense'", "'allow_once', 'allow_always', 'reject_once', 'reject_always'"]),
        ("", True, ["messages.0.tool_permission.x-portico.choice", "at least 1 character"]),
    ):
        session = await start(aap, write_scenario, NOTE, {"text": "end"}, grants=[{"name": "write_note"}])
        text = await expect_error(aap.post(session, {"messages": [permission("note-1", choice, granted)]}), 400)
        assert all(word in text for word in words), text
        found = await aap.get_session(session)
        assert (found["state"], found["agent"]["tools"]) == ("waiting", [{"name": "write_note", "trust": False}]), (
            choice,
            granted,
        )
        assert (await aap.send_turn(session, permission("note-1", "allow_once")))["stopReason"] == "end_turn", (choice, granted)


async def test_choice_about_a_call_without_choices(aap: AapClient, write_scenario: WriteScenario) -> None:
    # Choice about a call that is not pending.
    session = await start(aap, write_scenario, NOTE, {"text": "end"}, grants=[{"name": "write_note"}])
    text = await expect_error(aap.post(session, {"messages": [permission("other", "allow_once")]}), 400)
    assert "'other' is not a pending tool call" in text
    await aap.send_turn(session, permission("note-1", "allow_once"))
    text = await expect_error(aap.post(session, {"messages": [permission("note-1", "allow_once")]}), 400)
    assert "answered already" in text
    # Result of the application has no choices.
    tools = [{"name": "get_time", "description": "The time.", "inputSchema": {"type": "object"}}]
    session = await start(aap, write_scenario, {"app_tool": {"id": "time", "name": "get_time"}}, {"text": "end"}, tools=tools)
    text = await expect_error(aap.post(session, {"messages": [permission("time", "allow_once")]}), 400)
    assert "it waits for its result" in text


async def test_choice_is_in_the_audit_and_shown_to_other_readers(
    portico: RunningGateway, aap: AapClient, write_scenario: WriteScenario
) -> None:
    session = await start(aap, write_scenario, asks(LASTING), {"text": "end"})
    await aap.send_turn(session, permission("git", "rule:0"))
    records = await portico.gateway.store.audit.newest(10, session)
    assert [(record.outcome, record.by) for record in records] == [("asked", "default"), ("granted", "client")]
    path = f"{aap.path(session)}/events"
    first = await portico.client.get(path, params={"after": "0", "until": "turn_stop"})
    seen = first.text.rstrip().rpartition("id: ")[2]
    second = await portico.client.get(path, params={"after": seen, "until": "turn_stop"})
    name, message = parse_frames(second.text)[0]
    assert (name, message) == ("client_message", permission("git", "rule:0") | {"reason": None})


async def test_answer_is_for_the_calls_that_the_client_has_seen(aap: AapClient, write_scenario: WriteScenario) -> None:
    """An agent may use an id again: who answers late must not allow a call that they have not seen."""
    session = await start(aap, write_scenario, asks(LASTING), {"text": "end"})
    since = (await aap.get_session(session))["waitingSince"]
    await aap.send_turn(session, permission("git", "reject_once", granted=False))
    assert (await aap.send_turn(session, "again"))["stopReason"] == "tool_use"
    later = (await aap.get_session(session))["waitingSince"]
    late = {"role": "tool_permission", "toolCallId": "git", "granted": True}
    for own in ({"choice": "allow_once", "waitingSince": since}, {"waitingSince": since}):
        body = {"messages": [{**late, "x-portico": own}]}
        assert "other calls wait by now" in await expect_error(aap.post(session, body), 409)
    assert (await aap.get_session(session))["state"] == "waiting"
    answer = await aap.send_turn(session, {**late, "x-portico": {"waitingSince": later}})
    assert answer["stopReason"] == "end_turn"
