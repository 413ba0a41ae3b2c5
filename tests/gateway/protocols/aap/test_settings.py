"""Options, tools and agent of a session. Invalid values are named in the error and change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drivers.contract.driver_info import ToolGrant
from gateway.app import Gateway
from gateway.config import parse
from gateway.protocols.aap.settings_merge import merge_settings
from gateway.security.redaction import Redactor
from gateway.sessions.settings import SessionSettings
from tests.support.aap_client import AapClient
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import expect_error, session_body, user_message

WriteScenario = Callable[..., str]
OPTIONS_AS_TEXT = [{"text": "{options.pace} {options.token}"}]
WEATHER = {"name": "get_weather", "description": "The weather.", "inputSchema": {"type": "object", "properties": {}}}


def _text(answer: dict[str, Any]) -> str:
    return str(answer["messages"][0]["content"])


async def test_options_merge_by_key(aap: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario(OPTIONS_AS_TEXT)
    first = await aap.create_session(options={"scenario": name, "pace": "fast"})
    session = first["sessionId"]
    assert _text(first) == "fast "
    assert _text(await aap.send_turn(session, "x", agent={"options": {"token": "tok-1234"}})) == "fast tok-1234"
    assert _text(await aap.send_turn(session, "x")) == "fast tok-1234"
    assert _text(await aap.send_turn(session, "x", agent={"options": {"pace": "recorded"}})) == "recorded tok-1234"
    assert _text(await aap.send_turn(session, "x", agent={"options": {}})) == "recorded tok-1234"
    config = (await aap.get_session(session))["agent"]
    assert config == {"name": "script", "options": {"scenario": name, "pace": "recorded", "token": "***"}}
    # Masked secret sent back keeps its value.
    first = await aap.create_session(options={"scenario": write_scenario(OPTIONS_AS_TEXT), "token": "tok-1234"})
    session = first["sessionId"]
    masked = (await aap.get_session(session))["agent"]["options"]
    assert masked["token"] == "***"
    assert _text(await aap.send_turn(session, "x", agent={"options": masked})) == "recorded tok-1234"
    assert _text(await aap.send_turn(session, "x", agent={"options": {"token": ""}})) == "recorded "
    fresh = await aap.create_session(options=masked)
    assert _text(fresh) == "recorded "
    # Stars are a literal value for other options.
    text = await expect_error(aap.put(session_body(options={"scenario": "***"})), 503)
    assert "***" in text


def test_stored_tools_that_the_agent_does_not_list_are_kept(tmp_path: Path) -> None:
    """A choice of the client may have trusted one, or the agent has another version since the session was created."""
    agent = Gateway(parse(gateway_config(tmp_path)), (), Redactor()).agents.get("echo")
    assert merge_settings(SessionSettings(), agent, None, None) == SessionSettings()
    stored = SessionSettings(tools=(ToolGrant("gone"),))
    assert merge_settings(stored, agent, None, None) == stored


async def test_option_that_was_never_set_has_its_default(tmp_path: Path, write_scenario: WriteScenario) -> None:
    entry = {
        "driver": "script",
        "cwd": str(tmp_path / "scenes"),
        "options": {"scenario": write_scenario(OPTIONS_AS_TEXT), "token": "from-config"},
    }
    async with run_gateway(gateway_config(tmp_path, agents={"demo": entry})) as portico:
        aap = AapClient(portico.client)
        answer = await aap.create_session("demo")
        assert _text(answer) == "recorded from-config"
        assert (await aap.get_session(answer["sessionId"]))["agent"] == {"name": "demo"}
        answer = await aap.create_session("demo", options={"token": "of-session", "pace": "fast"})
        assert _text(answer) == "fast of-session"
        reset = {"options": {"pace": "recorded"}}
        assert _text(await aap.send_turn(answer["sessionId"], "x", agent=reset)) == "recorded of-session"


async def test_settings_are_kept_over_a_restart(tmp_path: Path, write_scenario: WriteScenario) -> None:
    config = gateway_config(tmp_path)
    options = {"scenario": write_scenario(OPTIONS_AS_TEXT), "token": "tok-1234"}
    async with run_gateway(config) as portico:
        aap = AapClient(portico.client)
        session = (await aap.create_session(options=options, tools=[WEATHER], grants=[{"name": "lookup", "trust": True}]))[
            "sessionId"
        ]
        before = await aap.get_session(session)
    async with run_gateway(config) as portico:
        aap = AapClient(portico.client)
        assert await aap.get_session(session) == before
        assert _text(await aap.send_turn(session, "x")) == "recorded tok-1234"
    assert before["tools"] == [WEATHER]
    assert before["agent"]["tools"] == [{"name": "lookup", "trust": True}]


async def test_tools_replace_the_previous_tools(aap: AapClient, write_scenario: WriteScenario) -> None:
    own = {"tool_call": {"name": "lookup", "result": "3 hits"}}
    name = write_scenario([own, {"text": "{last_result}"}])
    answer = await aap.create_session(options={"scenario": name})
    session = answer["sessionId"]
    assert "not enabled" in answer["messages"][-1]["content"], "without agent.tools all tools of the agent are disabled"
    assert "tools" not in await aap.get_session(session)
    granted = {"tools": [{"name": "lookup", "trust": True}, {"name": "shell"}]}
    assert (await aap.send_turn(session, "x", agent=granted))["messages"][-1]["content"] == "3 hits"
    found = await aap.get_session(session)
    assert found["agent"]["tools"] == [{"name": "lookup", "trust": True}, {"name": "shell", "trust": False}]
    assert (await aap.send_turn(session, "x"))["messages"][-1]["content"] == "3 hits"
    none = await aap.send_turn(session, "x", agent={"tools": []}, tools=[WEATHER])
    assert "not enabled" in none["messages"][-1]["content"]
    found = await aap.get_session(session)
    assert found["agent"]["tools"] == []
    assert found["tools"] == [WEATHER]


BAD_AGENTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"options": {"modle": "x"}}, ["'modle'", "pace"]),
    ({"options": {"pace": "slow"}}, ["'pace'", "recorded, fast"]),
    ({"options": {"pace": ""}}, ["'pace'"]),
    ({"options": {"token": 7}}, ["agent.options.token", "string"]),
    ({"options": {"path": 7}}, ["agent.options.path", "string"]),
    ({"options": ["pace"]}, ["agent.options"]),
    ({"tools": [{"name": "hammer"}]}, ["'hammer'", "lookup, shell, write_note"]),
    ({"tools": [{"trust": True}]}, ["agent.tools.0.name"]),
    ({"tools": "lookup"}, ["agent.tools"]),
    ({"options": {"cwd": "../"}}, ["'cwd'"]),
]


async def test_invalid_settings_are_refused_and_change_nothing(aap: AapClient, write_scenario: WriteScenario) -> None:
    session = (await aap.create_session(options={"pace": "fast", "token": "tok-1234"}))["sessionId"]
    before = await aap.get_session(session)
    for agent, named in BAD_AGENTS:
        turn = {"messages": [user_message()], "agent": agent}
        refused = await expect_error(aap.post(session, turn), 400)
        refused += await expect_error(aap.put(session_body() | {"agent": {"name": "script", **agent}}), 400)
        assert all(refused.count(word) >= 2 for word in named), refused
        assert "tok-1234" not in refused
    assert await aap.get_session(session) == before
    assert await aap.list_sessions() == {"sessions": [session]}
    # Agent of a session cannot be changed.
    session = (await aap.create_session("script", options={"pace": "fast"}))["sessionId"]
    before = await aap.get_session(session)
    body = {"messages": [user_message()], "agent": {"name": "echo", "options": {"pace": "recorded"}}}
    text = await expect_error(aap.post(session, body), 400)
    assert "'script'" in text and "'echo'" in text
    assert await aap.get_session(session) == before
    assert (await aap.send_turn(session, "x", agent={"name": "script"}))["stopReason"] == "end_turn"
    # Settings that prevent the agent start are not stored.
    session = (await aap.create_session(options={"scenario": write_scenario(OPTIONS_AS_TEXT), "token": "tok-1234"}))["sessionId"]
    before = await aap.get_session(session)
    body = {"messages": [user_message()], "agent": {"options": {"scenario": "missing.json", "token": "another"}}}
    assert "missing.json" in await expect_error(aap.post(session, body), 503)
    assert await aap.get_session(session) == before
    assert _text(await aap.send_turn(session, "x")) == "recorded tok-1234"


BAD_TOOLS: list[tuple[str, Any, list[str]]] = [
    ("script", [WEATHER | {"name": "lookup"}], ["'lookup' is taken by a tool of agent 'script'", "unique"]),
    ("script", [WEATHER, WEATHER], ["'get_weather' is taken by an earlier tool of this request", "unique"]),
    ("echo", [WEATHER], ["'get_weather'", "'echo'", "use an agent that takes them: script"]),
    ("script", [WEATHER | {"inputSchema": "x"}], ["tools.0.inputSchema"]),
    ("script", [{"name": "x", "inputSchema": {}}], ["tools.0.description"]),
    ("script", [WEATHER | {"name": ""}], ["tools.0.name"]),
    ("script", {}, ["tools"]),
]


async def test_invalid_application_tools_are_refused(aap: AapClient) -> None:
    sessions = {name: (await aap.create_session(name))["sessionId"] for name in ("script", "echo")}
    before = [await aap.get_session(session) for session in sessions.values()]
    for agent, tools, named in BAD_TOOLS:
        turn = {"messages": [user_message()], "tools": tools}
        named = [word.replace("inputSchema", aap.schema) for word in named]
        refused = await expect_error(aap.post(sessions[agent], turn), 400)
        refused += await expect_error(aap.put(session_body(agent, tools=tools)), 400)
        assert all(refused.count(word) >= 2 for word in named), refused
    assert [await aap.get_session(session) for session in sessions.values()] == before
    assert len((await aap.list_sessions())["sessions"]) == 2


async def test_agents_that_are_unknown_or_do_not_start(aap: AapClient, portico: RunningGateway) -> None:
    # Unknown agent is refused.
    text = await expect_error(aap.put(session_body("no-such-agent")), 400)
    assert "'no-such-agent'" in text
    assert "echo" in text and "script" in text
    assert await aap.list_sessions() == {"sessions": []}
    # Session is removed if its agent does not start.
    text = await expect_error(aap.put(session_body(options={"scenario": "missing.json"})), 503)
    assert "missing.json" in text
    assert len((await aap.list_sessions())["sessions"]) == 1, "version 3 creates the session in a separate request"
    refused = portico.client.put("/session", json=session_body(options={"scenario": "missing.json"}))
    assert "missing.json" in await expect_error(refused, 503)
    assert len((await aap.list_sessions())["sessions"]) == 1, "one that was created with the turn is removed"
    assert not await portico.gateway.store.processes.all()
    # Tool schema is returned unchanged.
    schema = json.loads('{"type":"object","properties":{"a":{"enum":[1,2.5,null,true]}},"x-own":{"deep":[[]]},"$defs":{}}')
    tool = {"name": "t", "title": "A tool", "description": "", "inputSchema": schema}
    session = (await aap.create_session(tools=[tool], options={"pace": "fast"}))["sessionId"]
    assert (await aap.get_session(session))["tools"] == [tool]
