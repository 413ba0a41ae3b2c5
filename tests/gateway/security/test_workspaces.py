"""Workspaces of agents without a `cwd`: one for the default keys, and one for each named key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from gateway.errors import BadRequest, ConfigError
from gateway.security.authentication import Caller
from gateway.sessions.settings import SessionSettings
from tests.support.acp_client import RpcFailed, connect
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import agent_processes, create_session, execute, get_session, send_turn

PHONE, LAPTOP = Caller("phone", all_sessions=False), Caller("laptop", all_sessions=False)


@pytest.fixture
async def phone(portico: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the named key `phone`."""
    key = await add_key(portico.gateway, "phone")
    async with httpx.AsyncClient(base_url=portico.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        yield client


def folders_of_agents() -> list[str]:
    return [psutil.Process(agent.pid).cwd() for agent in agent_processes(psutil.Process().pid)]


async def test_agents_of_a_named_key_work_in_its_own_folder(portico: RunningGateway, phone: httpx.AsyncClient) -> None:
    data = portico.gateway.settings.data_dir
    await create_session(portico.client, "echo")
    assert folders_of_agents() == [str(data / "workspaces" / "echo")]
    session = (await create_session(phone, "echo"))["sessionId"]
    assert sorted(folders_of_agents()) == [str(data / "key-workspaces" / "phone" / "echo"), str(data / "workspaces" / "echo")]
    assert (data / "key-workspaces" / "phone" / "echo").stat().st_mode & 0o077 == 0
    # The folder is no option that the client has set.
    assert (await get_session(phone, session))["agent"].get("options") is None
    # The administrator's turns in it do not move it.
    await send_turn(portico.client, session, "more")
    assert str(data / "key-workspaces" / "phone" / "echo") in folders_of_agents()


async def test_session_of_a_named_key_cannot_choose_another_workspace(portico: RunningGateway, phone: httpx.AsyncClient) -> None:
    data = portico.gateway.settings.data_dir
    agent = portico.gateway.agents.get("echo")
    for other in (data / "workspaces" / "echo", data / "key-workspaces" / "laptop" / "echo"):
        other.mkdir(parents=True, exist_ok=True)
        body = {"agent": {"name": "echo", "options": {"cwd": str(other)}}, "messages": [{"role": "user", "content": "x"}]}
        answer = await phone.put("/session", json=body)
        assert (answer.status_code, "is not below the folder of agent" in answer.text) == (400, True)
        with pytest.raises(BadRequest):
            agent.additional_directories([str(other)], "phone")


async def test_task_of_a_named_key_works_in_its_own_folder(portico: RunningGateway, phone: httpx.AsyncClient) -> None:
    data = portico.gateway.settings.data_dir
    await execute(portico.client, driver="echo")
    assert not (data / "key-workspaces").exists()
    await execute(phone, driver="echo")
    assert (data / "key-workspaces" / "phone" / "echo").is_dir()


async def test_acp_sessions_of_two_keys_have_their_own_folders(portico: RunningGateway) -> None:
    data = portico.gateway.settings.data_dir
    for caller in (PHONE, LAPTOP):
        own = data / "key-workspaces" / str(caller.name) / "echo"
        client, connection = connect(portico.gateway, "echo", caller)
        await client.initialize()
        session = (await client.request("session/new", {"cwd": ".", "mcpServers": []}))["sessionId"]
        [listed] = (await client.request("session/list", {"cwd": str(own)}))["sessions"]
        assert (listed["sessionId"], listed["cwd"]) == (session, str(own))
        fork = {"sessionId": session, "cwd": str(own), "mcpServers": []}
        with pytest.raises(RpcFailed, match="not below the folder"):
            await client.request("session/new", {"cwd": str(data / "workspaces" / "echo"), "mcpServers": []})
        await client.request("session/load", fork)
        await connection.close()


async def test_session_from_before_keys_had_workspaces_stays_in_its_folder(portico: RunningGateway) -> None:
    """Such a session has stored no key of its workspace."""
    data, sessions = portico.gateway.settings.data_dir, portico.gateway.sessions
    agent = portico.gateway.agents.get("echo")
    session = await sessions.create(PHONE, agent, SessionSettings(), [])
    assert SessionSettings.from_json(session.config.to_json(), {}).workspace_key is None
    await send_turn(portico.client, session.id, "hello")
    assert folders_of_agents() == [str(data / "workspaces" / "echo")]


def test_workspace_key_is_stored() -> None:
    settings = replace(SessionSettings(), workspace_key="phone", additional_directories=("/a",))
    assert SessionSettings.from_json(settings.to_json(), {}) == settings


async def test_agent_with_a_cwd_has_it_for_every_key(tmp_path: Path) -> None:
    config = gateway_config(tmp_path)
    async with run_gateway(config) as running:
        agent = running.gateway.agents.get("script")
        assert agent.workspace_key("phone") is None
        assert agent.working_directory(None, agent.workspace_key("phone")) == Path(config["agents"]["script"]["cwd"])


async def test_key_whose_name_differs_in_case_only_is_refused(portico: RunningGateway) -> None:
    """Some file systems would give both the same workspace."""
    await add_key(portico.gateway, "phone")
    with pytest.raises(ConfigError, match="there is a key 'phone' already"):
        await add_key(portico.gateway, "Phone")
