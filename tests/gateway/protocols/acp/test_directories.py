"""Additional directories of a session: validation, what is passed to the agent, and storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.configured_agents import MAX_ADDITIONAL_DIRECTORIES, Agents
from gateway.config import parse
from gateway.errors import BadRequest
from tests.gateway.cli.test_acp import small_agent
from tests.gateway.protocols.acp.conftest import ConnectClient, WriteScenario
from tests.support.acp_client import Client, RpcFailed, connect, connected
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import send_turn

STEPS: list[Any] = [{"text": "<{additional_directories}>"}]
Make = Callable[..., list[str]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Creates folders below the folder of the agent."""

    def folders(*names: str) -> list[str]:
        made = [tmp_path / "scenes" / name for name in names]
        for folder in made:
            folder.mkdir(parents=True, exist_ok=True)
        return [str(folder) for folder in made]

    return folders


def session_body(session: str, *directories: Any, cwd: str = ".") -> dict[str, Any]:
    given = {"additionalDirectories": list(directories)} if directories else {}
    return {"sessionId": session, "cwd": cwd, "mcpServers": [], **given}


async def new(client: Client, portico: RunningGateway, write_scenario: WriteScenario, *directories: str) -> str:
    """A session with these directories, whose agent answers with the directories that it has."""
    session = await client.new(additionalDirectories=list(directories))
    found = (await portico.client.get(f"/session/{session}")).json()["agent"]["options"]
    scenario = {
        "agent": {"options": {**found, "scenario": write_scenario(STEPS)}},
        "messages": [{"role": "user", "content": "first"}],
    }
    assert (await portico.client.post(f"/session/{session}", json=scenario)).status_code == 200
    return session


async def reported(client: Client, session: str) -> list[str]:
    """The directories that the agent reports."""
    since = len(client.received)
    await client.prompt(session, "which?")
    return client.text(session, since=since).strip("<>").split()


async def listed(client: Client, session: str) -> list[str]:
    found = next(s for s in (await client.request("session/list"))["sessions"] if s["sessionId"] == session)
    return list(found.get("additionalDirectories", []))


async def test_directories_are_passed_to_the_agent_and_listed(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario, make: Make
) -> None:
    one, two = make("one", "two")
    (Path(one).parent / "way-in").symlink_to(two)
    client = await acp()
    # In the order of the client, without duplicates, as real paths.
    session = await new(client, portico, write_scenario, two, one, two + "/", str(Path(one).parent / "way-in"), one + "/../one")
    assert await listed(client, session) == [two, one]
    assert await reported(client, session) == [two, one]
    plain = await new(client, portico, write_scenario)
    assert await reported(client, plain) == [] == await listed(client, plain)
    info = next(s for s in (await client.request("session/list"))["sessions"] if s["sessionId"] == plain)
    assert "additionalDirectories" not in info


async def test_invalid_directory_is_refused_with_its_index(acp: ConnectClient, make: Make, tmp_path: Path) -> None:
    (good,) = make("good")
    (tmp_path / "outside").mkdir()
    (tmp_path / "scenes" / "file").write_text("x")
    (tmp_path / "scenes" / "way-out").symlink_to(tmp_path / "outside")
    client = await acp()
    bad = {
        "good": "not an absolute path",
        "": "not an absolute path",
        "~": "not an absolute path",
        str(tmp_path): "not below the folder",
        "/": "not below the folder",
        "/tmp": "not below the folder",
        good + "/../..": "not below the folder",
        str(tmp_path / "scenes" / "way-out"): "not below the folder",
        str(tmp_path / "scenes" / "missing"): "create it first",
        str(tmp_path / "scenes" / "file"): "create it first",
        good + "\0": "cannot be a folder",
    }
    for path, message in bad.items():
        for params in ({"additionalDirectories": [good, path]},):
            with pytest.raises(RpcFailed, match=message) as refused:
                await client.new(**params)
            assert (refused.value.code, refused.value.message.startswith("additionalDirectories[1]: ")) == (-32602, True)
    for invalid in (1, None, ["x"], {"path": good}):
        with pytest.raises(RpcFailed, match=r"^additionalDirectories\[1\]: must be a path, as a string") as refused:
            await client.new(additionalDirectories=[good, invalid])
        assert refused.value.code == -32602
    with pytest.raises(RpcFailed, match="additionalDirectories"):
        await client.new(additionalDirectories=good)
    with pytest.raises(RpcFailed, match="too many"):
        await client.new(additionalDirectories=[good] * (MAX_ADDITIONAL_DIRECTORIES + 1))
    assert (await client.request("session/list"))["sessions"] == []
    assert await client.new(additionalDirectories=None)


async def test_directories_are_those_of_the_newest_request(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario, make: Make
) -> None:
    one, two, three = make("one", "two", "three")
    client = await acp()
    session = await new(client, portico, write_scenario, one, two)
    for method in ("session/load", "session/resume"):
        await client.request(method, session_body(session, three, one))
        assert await reported(client, session) == [three, one] == await listed(client, session), method
        await client.request(method, session_body(session))
        assert await reported(client, session) == [] == await listed(client, session), method
    await client.request("session/resume", session_body(session, one))
    for method in ("session/load", "session/resume", "session/fork"):
        for bad in ((two, "/tmp"), (two, 5), (two, one + "/missing")):
            with pytest.raises(RpcFailed, match=r"^additionalDirectories\[1\]: ") as refused:
                await client.request(method, session_body(session, *bad))
            assert refused.value.code == -32602
    assert len((await client.request("session/list"))["sessions"]) == 1
    # The session is still open on this connection, with its previous directories; a fork has its own ones.
    fork = (await client.request("session/fork", session_body(session, two)))["sessionId"]
    bare = (await client.request("session/fork", session_body(session)))["sessionId"]
    for made, has in ((fork, [two]), (bare, []), (session, [one])):
        assert await reported(client, made) == has == await listed(client, made)


async def test_directories_are_kept_over_a_restart_and_used_over_aap(
    tmp_path: Path, write_scenario: WriteScenario, make: Make
) -> None:
    one, two = make("one", "two")
    config = gateway_config(tmp_path)
    async with run_gateway(config) as portico, connected(portico.gateway) as client:
        session = await new(client, portico, write_scenario, one, two)
    async with run_gateway(config) as portico:
        answer = await send_turn(portico.client, session, "which?")
        assert answer["messages"][-1]["content"] == f"<{one}\n{two}>"
        # A change of other settings keeps them.
        settings = {"agent": {"options": {"pace": "fast"}}, "messages": [{"role": "user", "content": "and now?"}]}
        answer = (await portico.client.post(f"/session/{session}", json=settings)).json()
        async with connected(portico.gateway) as client:
            assert await listed(client, session) == [one, two]


async def test_deleted_directory_is_named_in_the_error(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario, make: Make
) -> None:
    one, two = make("one", "two")
    client = await acp()
    session = await new(client, portico, write_scenario, one, two)
    await client.request("session/close", {"sessionId": session})
    await asyncio.to_thread(Path(two).rmdir)
    assert await listed(client, session) == [one, two]
    with pytest.raises(RpcFailed, match=r"^additionalDirectories\[1\]: there is no folder") as refused:
        await client.request("session/resume", session_body(session, one, two))
    assert refused.value.code == -32602
    refusal = await portico.client.post(f"/session/{session}", json={"messages": [{"role": "user", "content": "go on"}]})
    assert (refusal.status_code, "additionalDirectories[1]" in refusal.text) == (400, True)
    await client.request("session/resume", session_body(session, one))
    assert await reported(client, session) == [one]


async def test_agent_without_support_refuses_directories(acp: ConnectClient, portico: RunningGateway, tmp_path: Path) -> None:
    client = await acp("echo")
    can = (await client.initialize())["agentCapabilities"]["sessionCapabilities"]
    assert "additionalDirectories" not in can
    here = portico.gateway.settings.data_dir / "workspaces" / "echo" / "more"
    here.mkdir(parents=True)
    session = await client.new(additionalDirectories=[])
    for method, params in (
        ("session/new", {"cwd": ".", "mcpServers": [], "additionalDirectories": [str(here)]}),
        ("session/load", session_body(session, str(here))),
        ("session/resume", session_body(session, str(here))),
        ("session/fork", session_body(session, str(here))),
    ):
        with pytest.raises(RpcFailed, match=r"^additionalDirectories: agent 'echo' works in one folder") as refused:
            await client.request(method, params)
        assert refused.value.code == -32602
    assert len((await client.request("session/list"))["sessions"]) == 1


async def test_acp_agents_own_capability_decides_about_directories(tmp_path: Path) -> None:
    for supported in (True, False):
        folder = tmp_path / str(supported)
        folder.mkdir()
        agent = small_agent(folder)
        agent["env"]["ACP_AGENT_FLAGS"] = "folders" if supported else ""
        more = folder / "work" / "more"
        more.mkdir()
        (more / "file.txt").write_text("content")
        async with run_gateway(gateway_config(folder, agents={"small": agent})) as portico:
            client, connection = connect(portico.gateway, "small")
            # The first client already gets the capability that the agent declares.
            can = (await client.initialize())["agentCapabilities"]["sessionCapabilities"]
            assert ("additionalDirectories" in can) is supported, supported
            if supported:
                session = await client.new(additionalDirectories=[str(more)])
                await client.prompt(session, "folders")
                assert client.text(session) == f"new {more}", supported
                await client.request("session/close", {"sessionId": session})
                await client.request("session/resume", session_body(session, str(more)))
                since = len(client.received)
                await client.prompt(session, "folders")
                assert client.text(session, since=since) == f"resume {more}", supported
            else:
                with pytest.raises(RpcFailed, match="one folder a session"):
                    await client.new(additionalDirectories=[str(more)])
            await connection.close()


def test_directories_must_be_below_the_configured_folder(tmp_path: Path) -> None:
    """With `any_directory`, an agent without a configured folder accepts any; an agent with a folder accepts those below it."""
    (tmp_path / "own" / "below").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    settings = parse({"agents": {"free": {"driver": "script"}, "bound": {"driver": "script", "cwd": str(tmp_path / "own")}}})
    agents = Agents(settings, {}, tmp_path / "workspace", any_directory=True)
    below, other = str(tmp_path / "own" / "below"), str(tmp_path / "other")
    assert agents.get("free").additional_directories([other, below]) == (Path(other), Path(below))
    assert agents.get("bound").additional_directories([below]) == (Path(below),)
    with pytest.raises(BadRequest, match=r"^additionalDirectories\[1\]: .* not below the folder of agent 'bound'"):
        agents.get("bound").additional_directories([below, other])
    with pytest.raises(BadRequest, match=r"not below the folder of agent 'free'"):
        Agents(settings, {}, tmp_path / "workspace").get("free").additional_directories([other])
