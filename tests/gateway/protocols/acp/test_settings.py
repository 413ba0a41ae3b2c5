"""Modes, config options, logins and MCP servers over the Agent Client Protocol."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cli.test_acp import small_agent
from tests.gateway.protocols.acp.conftest import ConnectClient, Scripted, WriteScenario
from tests.support.acp_client import RpcFailed, connect, connected, kinds, prompt
from tests.support.cluster import leave_out, placement
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import get_session
from tests.support.stores import content as stored_content


def of_kind(updates: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [update for update in updates if update["sessionUpdate"] == kind]


async def test_modes_set_the_trust_of_the_tools(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    session = answer["sessionId"]
    assert answer["modes"]["currentModeId"] == "ask"
    assert [mode["id"] for mode in answer["modes"]["availableModes"]] == ["ask", "edit", "auto"]
    [permissions] = [option for option in answer["configOptions"] if option.get("category") == "mode"]
    assert permissions["currentValue"] == "ask"

    async def trust() -> dict[str, bool]:
        tools = (await get_session(portico.client, session))["agent"]["tools"]
        return {tool["name"]: tool["trust"] for tool in tools}

    assert set((await trust()).values()) == {False}
    await client.request("session/set_mode", {"sessionId": session, "modeId": "edit"})
    assert await trust() == {"lookup": True, "write_note": True, "shell": False}
    assert of_kind(client.updates(session), "current_mode_update") == [
        {"sessionUpdate": "current_mode_update", "currentModeId": "edit"}
    ]
    assert of_kind(client.updates(session), "config_option_update")[-1]["configOptions"][0]["currentValue"] == "edit"
    options = {"sessionId": session, "configId": "permissions", "value": "auto"}
    complete = (await client.request("session/set_config_option", options))["configOptions"]
    assert complete[0]["currentValue"] == "auto"
    assert set((await trust()).values()) == {True}


async def test_modes_decide_about_permissions(scripted: Scripted) -> None:
    # Auto mode requests no permission.
    client, session = await scripted([{"tool_call": {"name": "shell", "result": "ran"}}, {"text": "{last_result}"}])
    await client.request("session/set_mode", {"sessionId": session, "modeId": "auto"})
    await client.prompt(session)
    assert client.text(session) == "ran"
    assert client.permission_requests.empty()
    assert of_kind(client.updates(session), "tool_call")[0]["status"] == "in_progress"
    # Mode changed during a run applies to later calls.
    steps = [{"tool_call": {"name": "shell", "id": f"c{n}"}} for n in range(2)]
    client, session = await scripted([*steps, {"text": "done"}])
    answer = await client.begin("session/prompt", prompt(session, "go"))
    question = await client.next_permission_request()
    await client.request("session/set_mode", {"sessionId": session, "modeId": "auto"})
    await client.answer(question, "allow_once")
    assert (await answer)["stopReason"] == "end_turn"
    # The agent asked about the second call too, which was trusted by then.
    assert client.permission_requests.empty()


async def test_settings_changed_over_aap_are_sent_to_the_client(scripted: Scripted, portico: RunningGateway) -> None:
    client, session = await scripted([{"text": "."}])
    tools = [{"name": "shell", "trust": True}]
    body = {"agent": {"tools": tools, "options": {"pace": "fast"}}, "messages": [{"role": "user", "content": "x"}]}
    assert (await portico.client.post(f"/session/{session}", json=body)).status_code == 200
    await client.until(lambda _: of_kind(client.updates(session), "session_info_update"))
    assert of_kind(client.updates(session), "current_mode_update")[-1]["currentModeId"] == "auto"
    reported = {o["id"]: o["currentValue"] for o in of_kind(client.updates(session), "config_option_update")[-1]["configOptions"]}
    assert reported == {"permissions": "auto", "pace": "fast"}


async def test_config_options_list_choices_and_can_be_set(acp: ConnectClient, portico: RunningGateway) -> None:
    client = await acp()
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    # Only options with choices: a text cannot be chosen from a list, and secrets are not sent.
    assert [option["id"] for option in answer["configOptions"]] == ["permissions", "pace"]
    change = {"sessionId": answer["sessionId"], "configId": "pace"}
    complete = (await client.request("session/set_config_option", {**change, "value": "fast"}))["configOptions"]
    assert [(o["id"], o["currentValue"]) for o in complete] == [("permissions", "ask"), ("pace", "fast")]
    assert (await get_session(portico.client, answer["sessionId"]))["agent"]["options"]["pace"] == "fast"
    for wrong in ({"value": "slow"}, {"type": "boolean", "value": True}):
        with pytest.raises(RpcFailed) as refused:
            await client.request("session/set_config_option", {**change, **wrong})
        assert refused.value.code == -32602


@pytest.fixture
async def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Connects clients to the small ACP agent behind a gateway. The agent `locked` is the same without a login."""
    monkeypatch.setattr("gateway.agents.discovery.PROBE_TIMEOUT", 60.0)
    agents = {"small": small_agent(tmp_path)}
    login = small_agent(tmp_path)
    login["env"]["ACP_AGENT_FLAGS"] = "nologin"
    async with run_gateway(gateway_config(tmp_path, agents={**agents, "locked": login})) as running:
        connections = []

        async def start(agent: str = "small") -> Any:
            client, connection = connect(running.gateway, agent)
            connections.append(connection)
            await client.initialize()
            return client

        yield start
        for connection in connections:
            await connection.close()


async def test_models_modes_and_options_of_an_acp_agent(small: Any) -> None:
    # Models can be listed and set.
    client = await small()
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    [model] = [option for option in answer["configOptions"] if option.get("category") == "model"]
    names = [choice["value"] for choice in model["options"]]
    assert model["currentValue"] == "default"
    assert set(names) > {"default", "small"}
    assert await client.request("session/set_model", {"sessionId": answer["sessionId"], "modelId": names[-1]}) == {}
    reported = of_kind(client.updates(), "config_option_update")[-1]["configOptions"]
    assert next(o for o in reported if o["id"] == "model")["currentValue"] == names[-1]
    back = {"sessionId": answer["sessionId"], "configId": "model", "value": "default"}
    complete = (await client.request("session/set_config_option", back))["configOptions"]
    assert next(o for o in complete if o["id"] == "model")["currentValue"] == "default"
    # The TypeScript package 0.4.5 sends it this way.
    assert await client.request("session/set_mode", {"sessionId": answer["sessionId"], "modelId": names[-1]}) == {}
    reported = of_kind(client.updates(), "config_option_update")[-1]["configOptions"]
    assert next(o for o in reported if o["id"] == "model")["currentValue"] == names[-1]
    for method in ("session/set_model", "session/set_mode"):
        with pytest.raises(RpcFailed, match="no-such"):
            await client.request(method, {"sessionId": answer["sessionId"], "modelId": "no-such"})
    # Modes and config options of an ACP agent can be set.
    client = await small()
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    options = {option["id"]: option for option in answer["configOptions"]}
    assert list(options) == ["permissions", "mode", "model", "task_permissions", "config.loud"]
    assert [choice["value"] for choice in options["mode"]["options"]] == ["default", "calm", "wild"]
    assert (options["config.loud"]["name"], options["config.loud"]["currentValue"]) == ("Loud", "default")
    session = answer["sessionId"]
    for name, value in (("mode", "wild"), ("config.loud", "true")):
        await client.request("session/set_config_option", {"sessionId": session, "configId": name, "value": value})
    await client.prompt(session, "settings")
    assert client.text() == "wild small True"
    back = {"sessionId": session, "configId": "config.loud", "value": "default"}
    complete = (await client.request("session/set_config_option", back))["configOptions"]
    assert {option["id"]: option["currentValue"] for option in complete}["config.loud"] == "default"
    with pytest.raises(RpcFailed, match="choose one of default, true, false"):
        await client.request("session/set_config_option", {**back, "value": "maybe"})
    # Fork is refused where the agent cannot fork.
    client = await small()
    assert "fork" not in (await client.initialize())["agentCapabilities"]["sessionCapabilities"]
    with pytest.raises(RpcFailed, match="cannot be forked"):
        await client.request("session/fork", {"sessionId": await client.new(), "cwd": ".", "mcpServers": []})


async def test_discovery_results_of_a_slow_program_are_sent_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its models, settings and commands are sent once the program has answered."""
    if placement():
        leave_out("sees the first moment of a node, which another node outlives")
    monkeypatch.setattr("gateway.agents.discovery.PROBE_TIMEOUT", 0.0)
    agent = small_agent(tmp_path)
    agent["env"]["ACP_AGENT_FLAGS"] = "commands"
    async with (
        run_gateway(gateway_config(tmp_path, agents={"small": agent})) as running,
        connected(running.gateway, "small") as client,
    ):
        answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
        assert "model" not in [option["id"] for option in answer["configOptions"]]
        assert not of_kind(client.updates(), "available_commands_update")

        def reported_options() -> set[str]:
            """The options of the newest update: the session's agent may report its own before the probe of the program ends."""
            updates = of_kind(client.updates(), "config_option_update")
            return {option["id"] for option in updates[-1]["configOptions"]} if updates else set()

        await client.until(lambda _: "available_commands_update" in kinds(client.updates()))
        await client.until(lambda _: {"model", "mode", "config.loud"} <= reported_options())
        [reported] = of_kind(client.updates(), "available_commands_update")
        assert [command["name"] for command in reported["availableCommands"]] == ["shout"]


async def test_logins(small: Any) -> None:
    # Session needs the login of the CLI.
    client = await small("locked")
    answer = await client.initialize()
    assert [method["id"] for method in answer["authMethods"]] == ["login"]
    for attempt in ("session/new", "authenticate"):
        with pytest.raises(RpcFailed, match="not logged in") as refused:
            await client.request(attempt, {"cwd": ".", "mcpServers": [], "methodId": "login"})
        assert refused.value.code == -32000
    # Logout affects only its connection.
    client, other = await small(), await small()
    answer = await client.initialize()
    assert answer["agentCapabilities"]["auth"] == {"logout": {}}
    assert await client.request("logout") == {}
    with pytest.raises(RpcFailed, match="logged out") as refused:
        await client.new()
    assert refused.value.code == -32000
    assert await other.new()
    with pytest.raises(RpcFailed, match="unknown login method 'x'"):
        await client.request("authenticate", {"methodId": "x"})
    assert await client.request("authenticate", {"methodId": "login"}) == {}
    assert await client.new()


async def test_mcp_servers_are_passed_to_the_agent_and_not_stored_in_plain_text(small: Any, tmp_path: Path) -> None:
    client = await small()
    can = (await client.initialize())["agentCapabilities"]["mcpCapabilities"]
    assert can == {"http": True, "sse": True, "acp": False}
    server = {"name": "files", "command": "/bin/files", "args": ["-x"], "env": [{"name": "TOKEN", "value": "tok-5up3r"}]}
    session = await client.new(mcpServers=[server])
    await client.prompt(session, "servers")
    assert client.text(session) == "files /bin/files -x TOKEN=tok-5up3r"
    # It is stored only in the output of the agent.
    stored = stored_content(tmp_path / "data")
    assert b"tok-5up3r" not in stored.replace(b"TOKEN=tok-5up3r", b"")
    with pytest.raises(RpcFailed, match=r"mcpServers\[0\]"):
        await client.new(mcpServers=[{"type": "acp", "name": "x", "serverId": "1"}])
    # Agent without MCP support ignores MCP servers.
    client = await small("echo")
    server = {"name": "files", "command": sys.executable, "args": [], "env": [{"name": "T", "value": "tok-123456"}]}
    session = await client.new(mcpServers=[server])
    assert (await client.prompt(session, "hi"))["stopReason"] == "end_turn"
