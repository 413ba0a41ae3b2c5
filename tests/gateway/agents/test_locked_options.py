"""Options of an agent that the configuration locks: no protocol sets them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.configured_agents import Agents
from gateway.config import parse
from gateway.errors import ConfigError, Forbidden
from tests.gateway.cli.test_acp import small_agent
from tests.support.aap_client import AapClient, BaseUrl
from tests.support.acp_client import Client, RpcFailed, connect
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session, execute, get_session, send_turn, session_body, user_message

WriteScenario = Callable[..., str]


def locked_config(folder: Path, scenario: str, *locked: str) -> dict[str, Any]:
    entry = {"driver": "script", "cwd": str(folder / "scenes"), "options": {"scenario": scenario, "pace": "fast"}}
    return gateway_config(folder, agents={"script": {**entry, "locked": list(locked)}})


@pytest.fixture
async def portico(tmp_path: Path, write_scenario: WriteScenario) -> AsyncIterator[RunningGateway]:
    """A gateway whose script agent has `pace`, `cwd` and `token` locked."""
    config = locked_config(tmp_path, write_scenario([{"text": "hello"}], [{"text": "again"}]), "pace", "cwd", "token")
    async with run_gateway(config) as running:
        yield running


@pytest.fixture
async def client(portico: RunningGateway) -> AsyncIterator[Client]:
    client, connection = connect(portico.gateway, "script")
    await client.initialize()
    yield client
    await connection.close()


@pytest.mark.parametrize("option", [{"pace": "recorded"}, {"cwd": "sub"}, {"token": "x"}], ids=str)
async def test_requests_of_every_version_cannot_set_a_locked_option(
    portico: RunningGateway, base: BaseUrl, option: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "scenes" / "sub").mkdir(exist_ok=True)
    aap = AapClient(portico.client, base)
    session = (await create_session(portico.client))["sessionId"]
    turn = {"messages": [user_message("x")], "agent": {"options": option}}
    for answer in (await aap.put(session_body("script", options=option)), await aap.post(session, turn)):
        assert answer.status_code == 403, answer.text
        assert f"option {next(iter(option))!r} of agent 'script' is locked (agents.script.locked)" in answer.json()["error"]


async def test_value_of_the_configuration_is_accepted(portico: RunningGateway, tmp_path: Path) -> None:
    options = {"pace": "fast", "cwd": str(tmp_path / "scenes"), "token": ""}
    assert (await create_session(portico.client, options=options))["messages"][0]["content"] == "hello"


async def test_locked_options_are_not_listed(portico: RunningGateway, client: Client) -> None:
    agents = (await portico.client.get("/meta")).json()["agents"]
    [names] = [[option["name"] for option in agent["options"]] for agent in agents if agent["name"] == "script"]
    assert names == ["scenario"]
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    assert [option["id"] for option in answer["configOptions"]] == ["permissions"]


async def test_acp_client_cannot_set_a_locked_option_or_folder(client: Client, tmp_path: Path) -> None:
    (tmp_path / "scenes" / "sub").mkdir(exist_ok=True)
    session = await client.new()
    with pytest.raises(RpcFailed, match="option 'pace' of agent 'script' is locked"):
        await client.request("session/set_config_option", {"sessionId": session, "configId": "pace", "value": "recorded"})
    with pytest.raises(RpcFailed, match="option 'cwd' of agent 'script' is locked"):
        await client.request("session/new", {"cwd": str(tmp_path / "scenes" / "sub"), "mcpServers": []})
    await client.request("session/new", {"cwd": str(tmp_path / "scenes"), "mcpServers": []})


async def test_additional_directories_are_in_a_locked_folder(tmp_path: Path, write_scenario: WriteScenario) -> None:
    config = locked_config(tmp_path, write_scenario([{"text": "hello"}]), "cwd")
    config["agents"]["script"]["options"]["cwd"] = "sub"
    for name in ("sub/inner", "other"):
        (tmp_path / "scenes" / name).mkdir(parents=True)
    async with run_gateway(config) as running:
        client, connection = connect(running.gateway, "script")
        await client.initialize()
        await client.new(additionalDirectories=[str(tmp_path / "scenes" / "sub" / "inner")])
        with pytest.raises(RpcFailed, match="is not below the folder of agent 'script'"):
            await client.new(additionalDirectories=[str(tmp_path / "scenes" / "other")])
        await connection.close()


async def test_acp_client_and_task_cannot_set_a_locked_model(tmp_path: Path) -> None:
    config = gateway_config(tmp_path, agents={"small": small_agent(tmp_path, locked=["model", "mode", "config.loud"])})
    async with run_gateway(config) as running:
        client, connection = connect(running.gateway, "small")
        await client.initialize()
        answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
        assert [option["id"] for option in answer["configOptions"]] == ["permissions", "task_permissions"]
        session = {"sessionId": answer["sessionId"]}
        for method, params in (
            ("session/set_model", {"modelId": "large"}),
            ("session/set_mode", {"modelId": "large"}),
            ("session/set_config_option", {"configId": "model", "value": "large"}),
            ("session/set_config_option", {"configId": "mode", "value": "wild"}),
            ("session/set_config_option", {"configId": "config.loud", "value": "true"}),
        ):
            with pytest.raises(RpcFailed, match="is locked"):
                await client.request(method, session | params)
        # The option `config` could set any of them.
        answer = await running.client.put("/session", json=session_body("small", options={"config": "loud=true"}))
        assert (answer.status_code, "'config' of agent 'small' is locked" in answer.text) == (403, True)
        answer = await running.client.post("/v1/execute", json={"driver": "small", "task": "x", "model": "large"})
        assert (answer.status_code, "'model' of agent 'small' is locked" in answer.text) == (403, True)
        await connection.close()


async def test_option_that_is_locked_later_has_the_configured_value(tmp_path: Path, write_scenario: WriteScenario) -> None:
    other = write_scenario([{"text": "of the session"}], [{"text": "of the session"}], name="other.json")
    scene = write_scenario([{"text": "first"}], [{"text": "of the configuration"}])
    async with run_gateway(locked_config(tmp_path, scene)) as running:
        session = (await create_session(running.client, options={"scenario": other, "token": "0123456789"}))["sessionId"]
    async with run_gateway(locked_config(tmp_path, scene, "scenario", "token")) as running:
        assert (await get_session(running.client, session))["agent"].get("options") is None
        assert (await send_turn(running.client, session, "go on"))["messages"][-1]["content"] == "of the configuration"
    async with run_gateway(locked_config(tmp_path, scene)) as running:
        assert (await get_session(running.client, session))["agent"]["options"]["scenario"] == other


async def test_task_runs_with_the_locked_value(portico: RunningGateway) -> None:
    assert "".join(frame.get("text", "") for frame in await execute(portico.client)) == "hello"


def test_unknown_locked_option_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agents\.x\.locked\.1: the agent has no option 'sandox'; its options are"):
        Agents(parse({"agents": {"x": {"driver": "codex", "locked": ["model", "sandox"]}}}))
    with pytest.raises(ConfigError, match=r"no option 'confg\.loud'"):
        Agents(parse({"agents": {"x": {"driver": "acp", "locked": ["confg.loud"]}}}))


def test_codex_sandbox_is_locked(tmp_path: Path) -> None:
    entry = {"driver": "codex", "locked": ["sandbox"], "options": {"sandbox": "read-only"}}
    agent = Agents(parse(gateway_config(tmp_path, agents={"x": entry}))).get("x")
    agent.check_options({"sandbox": "read-only"})
    with pytest.raises(Forbidden):
        agent.check_options({"sandbox": "danger-full-access"})
