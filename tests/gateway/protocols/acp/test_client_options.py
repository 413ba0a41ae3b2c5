"""`_meta` of `session/new`: the system prompt, and the options of the CLI that are read."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.claude.driver import ClaudeDriver
from drivers.contract.driver_info import ToolGrant
from drivers.contract.messages import SystemMessage
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.config import AgentSettings
from gateway.errors import BadRequest, Forbidden
from gateway.protocols.acp.client_options import system_messages, with_client_options
from gateway.sessions.settings import SessionSettings
from tests.gateway.protocols.acp.conftest import ConnectClient, WriteScenario, set_options
from tests.support.daemon import RunningGateway

TOOLS = (ToolGrant("Bash"), ToolGrant("Read"))


@pytest.fixture
def agent(tmp_path: Any) -> ConfiguredAgent:
    settings = AgentSettings(driver="claude", locked=("settings",))
    return ConfiguredAgent("claude", settings, ClaudeDriver(), tmp_path, {}, False)


def options(agent: ConfiguredAgent, **given: Any) -> SessionSettings:
    return with_client_options(agent, SessionSettings(tools=TOOLS), {"claudeCode": {"options": given}})


def test_system_prompt_is_the_first_message(agent: ConfiguredAgent) -> None:
    for prompt, chosen in (("Be kind.", {"system_prompt": "replace"}), ({"append": "Be kind.", "type": "preset"}, {})):
        meta = {"systemPrompt": prompt}
        assert system_messages(agent, meta) == [SystemMessage(content="Be kind.")]
        assert with_client_options(agent, SessionSettings(), meta).options == chosen
    for none in (None, {}, {"systemPrompt": {"preset": "claude_code"}}, {"systemPrompt": ""}):
        assert system_messages(agent, none) == []
    with pytest.raises(BadRequest, match=r"_meta\.systemPrompt: must be"):
        system_messages(agent, {"systemPrompt": 7})


def test_listed_options_are_read_and_tools_only_removed(agent: ConfiguredAgent) -> None:
    assert options(agent, model="opus", effort="high").options == {"model": "opus", "effort": "high"}
    assert options(agent, tools=["Read", "Rocket"]).tools == (TOOLS[1],)
    assert options(agent, disallowedTools=["Bash"]).tools == (TOOLS[1],)
    assert options(agent, tools=[]).tools == ()
    # Malformed options are refused.
    for given in ({"model": 7}, {"disallowedTools": "Bash"}, {"tools": [7]}, {"disallowedTools": ["Bash(rm:*)"]}):
        with pytest.raises(BadRequest, match=r"_meta\.claudeCode\.options\."):
            options(agent, **given)


def test_options_that_could_widen_permissions_are_ignored(agent: ConfiguredAgent) -> None:
    given = {
        "settings": {"permissions": {"allow": ["Bash"]}}, "settingSources": ["user"], "allowedTools": ["Bash"], "hooks": {},
        "permissionMode": "bypassPermissions", "allowDangerouslySkipPermissions": True, "extraArgs": {"add-dir": "/"},
        "pathToClaudeCodeExecutable": "/bin/sh", "executable": "sh", "env": {"A": "1"}, "mcpServers": {"a": {"command": "sh"}},
        "additionalDirectories": ["/"], "cwd": "/", "sandbox": {}, "plugins": [], "resume": "x",
    }  # fmt: skip
    assert options(agent, **given) == SessionSettings(tools=TOOLS)


def test_locked_options_are_refused(tmp_path: Any) -> None:
    settings = AgentSettings(driver="claude", locked=("model", "system_prompt"))
    locked = ConfiguredAgent("claude", settings, ClaudeDriver(), tmp_path, {}, False)
    for meta in ({"claudeCode": {"options": {"model": "opus"}}}, {"systemPrompt": "Mine."}):
        with pytest.raises(Forbidden):
            with_client_options(locked, SessionSettings(tools=TOOLS), meta)


async def test_agent_gets_the_system_prompt(acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario) -> None:
    client = await acp()
    session = await client.new(_meta={"systemPrompt": {"append": "Be kind."}})
    await set_options(portico.gateway, session, scenario=write_scenario([{"text": "{system}"}]))
    await client.prompt(session)
    assert client.text() == "Be kind."
