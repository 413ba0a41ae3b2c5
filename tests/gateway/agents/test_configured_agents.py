"""Configured agents: environment variables, working directory, and a missing program."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivers.runtime.process_tree import MARKER
from gateway.agents.configured_agents import Agents
from gateway.config import parse
from tests.conftest import write_config
from tests.support.daemon import Daemon, RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session, execute, expect_error, get_session, send_turn, session_body, user_message

WriteScenario = Callable[..., str]
NAMES = [{"env": "*"}]


async def _agent_environment(daemon: Daemon, folder: Path, write_scenario: WriteScenario, *names: str) -> list[str]:
    """Return the environment variables that the agent outputs, in a session and in a task."""
    steps = [step for name in names for step in ({"env": name}, {"text": "\n"})]
    entry = {
        "driver": "script",
        "cwd": str(folder / "scenes"),
        "env": {"VENDOR_SETTING": "configured", "LANG": "de_DE.UTF-8"},
        "options": {"scenario": write_scenario(steps)},
    }
    write_config(folder, gateway_config(folder, agents={"script": entry}))
    await daemon.start()
    async with daemon.client() as client:
        session = (await create_session(client))["messages"][0]["content"]
        task = "".join(frame["text"] for frame in await execute(client) if frame["kind"] == "agent_token")
    return [session, task]


async def test_agent_environment_has_only_general_and_configured_variables(
    daemon: Daemon, tmp_path: Path, write_scenario: WriteScenario
) -> None:
    daemon.env = {
        "PORTICO_API_KEY": "key-of-the-gateway",
        "PORTICO_DATA_DIR": str(tmp_path / "data"),
        "PORTICO_LIMITS__IDLE": "60",
        "PORTICO_ANYTHING": "x",
        "AWS_SECRET_ACCESS_KEY": "of-somebody-else",
        "ANTHROPIC_API_KEY": "of-another-agent",
        "ARBITRARY": "x",
        "LC_TIME": "C",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "XDG_CACHE_HOME": "/tmp/cache",
    }
    for variables in await _agent_environment(daemon, tmp_path, write_scenario, "*"):
        names = set(variables.split())
        assert {"PATH", "HOME", "LANG", "LC_TIME", "HTTPS_PROXY", "XDG_CACHE_HOME", "VENDOR_SETTING"} <= names
        assert not {name for name in names if name.startswith("PORTICO_")} - {MARKER}
        assert not names & {"AWS_SECRET_ACCESS_KEY", "ANTHROPIC_API_KEY", "ARBITRARY"}


async def test_configured_variables_are_in_the_agent_environment(
    daemon: Daemon, tmp_path: Path, write_scenario: WriteScenario
) -> None:
    for variables in await _agent_environment(daemon, tmp_path, write_scenario, "VENDOR_SETTING", "LANG", "HOME"):
        assert variables.split("\n")[:3] == ["VENDOR_SETTING=configured", "LANG=de_DE.UTF-8", f"HOME={tmp_path}"]


async def test_driver_specific_variables_are_passed_only_to_agents_of_that_driver(tmp_path: Path) -> None:
    environ = {"ANTHROPIC_API_KEY": "x", "CLAUDE_CONFIG_DIR": "y", "PORTICO_X": "z", "PATH": os.environ["PATH"]}
    settings = parse({"agents": {"c": {"driver": "claude", "program": "true"}, "e": {"driver": "echo"}}})
    agents = Agents(settings, environ, tmp_path)
    assert agents.get("c").environment.keys() >= {"ANTHROPIC_API_KEY", "CLAUDE_CONFIG_DIR", "PATH"}
    assert agents.get("e").environment == {"PATH": os.environ["PATH"]}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """The agent's folder, with subfolders, a folder beside it, and symbolic links."""
    base = tmp_path / "scenes"
    (base / "below" / "deeper").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (base / "way-out").symlink_to(tmp_path / "outside")
    (base / "way-in").symlink_to(base / "below")
    (base / "file").write_text("x")
    for folder in (base, base / "below", base / "below" / "deeper"):
        (folder / "scene.json").write_text(json.dumps({"turns": [{"steps": [{"text": folder.name}]}]}))
    return base


async def test_cwd_option_within_the_agent_folder_is_used(portico: RunningGateway, folders: Path) -> None:
    used = {
        "below": "below",
        "below/deeper": "deeper",
        "./below/../below": "below",
        "way-in": "below",
        "": "scenes",
        ".": "scenes",
    }
    for chosen, name in used.items():
        for cwd in (chosen, str(folders / chosen)):
            answer = await create_session(portico.client, options={"scenario": "scene.json", "cwd": cwd})
            assert answer["messages"][0]["content"] == name
            assert (await get_session(portico.client, answer["sessionId"]))["agent"]["options"]["cwd"] == cwd


BAD_FOLDERS = [
    "..",
    "../",
    "below/../..",
    "/",
    "/tmp",
    "../outside",
    "../scenes2",
    "way-out",
    "way-out/..",
    "~",
    "~root",
    "~no-such-user",
    "missing",
    "below/missing",
    "file",
    "file/x",
    "x" * 5000,
    "a/" * 3000,
    "a\0b",
]


async def test_cwd_option_outside_the_agent_folder_is_rejected(portico: RunningGateway, folders: Path) -> None:
    session = (await create_session(portico.client, options={"scenario": "scene.json"}))["sessionId"]
    before = await get_session(portico.client, session)
    for cwd in BAD_FOLDERS:
        text = await expect_error(portico.client.put("/session", json=session_body(options={"cwd": cwd})), 400)
        assert "'cwd'" in text, (cwd, text)
        assert len(text) < 12_000
        body = {"messages": [user_message()], "agent": {"options": {"cwd": cwd}}}
        await expect_error(portico.client.post(f"/session/{session}", json=body), 400)
    assert await get_session(portico.client, session) == before
    assert (await portico.client.get("/sessions")).json() == {"sessions": [session]}
    assert "create it first" in await expect_error(
        portico.client.put("/session", json=session_body(options={"cwd": "missing"})), 400
    )


async def test_cwd_that_was_replaced_by_a_link_to_the_outside_is_rejected(portico: RunningGateway, folders: Path) -> None:
    answer = await create_session(portico.client, options={"scenario": "scene.json", "cwd": "below/deeper"})
    (folders / "below").rename(folders.parent / "outside" / "below")
    (folders / "below").symlink_to(folders.parent / "outside" / "below")
    options = {"messages": [user_message()], "agent": {"options": {"pace": "fast"}}}
    assert "'cwd'" in await expect_error(portico.client.post(f"/session/{answer['sessionId']}", json=options), 400)


async def test_agent_does_not_start_in_a_folder_that_becomes_a_link_after_its_check(
    portico: RunningGateway, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, below, moved = os.path.realpath, folders / "below", folders / "moved"

    def resolve_and_replace(path: str, **options: bool) -> str:
        """Each check finds a folder, and a link afterwards."""
        if not str(path).endswith("below"):
            return resolve(path, **options)
        if below.is_symlink():
            below.unlink()
            moved.rename(below)
        found = resolve(path, **options)
        below.rename(moved)
        below.symlink_to("../outside")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os.path, "realpath", resolve_and_replace)
        # Path.is_dir of the check follows the link to another folder: the check passes.
        request = portico.client.put("/session", json=session_body(options={"scenario": "", "cwd": "below"}))
        text = await expect_error(request, 503)
    assert below.is_symlink()
    assert f"the working folder {below} cannot be opened: its path contains a symbolic link" in text


async def test_agent_folder_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "work" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("work")
    settings = parse({"agents": {"demo": {"driver": "script", "cwd": str(tmp_path / "link")}}})
    agent = Agents(settings, {}, tmp_path).get("demo")
    assert agent.spec({}).cwd == tmp_path / "work"
    for chosen in ("below", str(tmp_path / "link" / "below"), str(tmp_path / "work" / "below")):
        assert agent.spec({"cwd": chosen}).cwd == tmp_path / "work" / "below"


async def test_agent_without_cwd_gets_a_workspace_in_the_data_directory(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, agents={"demo": {"driver": "script"}})) as portico:
        await create_session(portico.client, "demo", options={"pace": "fast"})
    assert (tmp_path / "data" / "workspaces" / "demo").is_dir()


MISSING: dict[str, Any] = {"driver": "claude", "program": "no-such-program"}


async def test_agent_with_missing_program_is_not_listed_and_requests_fail(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, agents={"away": MISSING})) as portico:
        meta = (await portico.client.get("/meta")).json()
        assert "away" not in [agent["name"] for agent in meta["agents"]]
        for request in (
            portico.client.put("/session", json=session_body("away")),
            portico.client.post("/v1/execute", json={"driver": "away", "task": "x"}),
        ):
            text = await expect_error(request, 503)
            assert "'no-such-program'" in text and "npm install" in text and "agents.away.program" in text
        assert (await portico.client.get("/sessions")).json() == {"sessions": []}
        assert not await portico.gateway.store.runs.unfinished()


async def test_session_continues_after_its_program_was_missing_and_is_back(tmp_path: Path, write_scenario: WriteScenario) -> None:
    config = gateway_config(tmp_path)
    async with run_gateway(config) as portico:
        session = (
            await create_session(portico.client, "script", "one", options={"scenario": write_scenario([{"remember": True}])})
        )["sessionId"]
    gone = config | {"agents": {"script": config["agents"]["script"] | {"program": "no-such-program"}}}
    async with run_gateway(gone) as portico:
        before = await get_session(portico.client, session)
        assert "no-such-program" in await expect_error(
            portico.client.post(f"/session/{session}", json={"messages": [user_message()]}), 503
        )
        assert await get_session(portico.client, session) == before
    async with run_gateway(config) as portico:
        assert (await send_turn(portico.client, session, "two"))["messages"][0]["content"] == '["one"]'


async def test_session_of_an_agent_that_is_no_longer_configured_fails_with_its_name(tmp_path: Path) -> None:
    config = gateway_config(tmp_path, agents={"demo": {"driver": "script", "options": {"pace": "fast"}}})
    async with run_gateway(config) as portico:
        session = (await create_session(portico.client, "demo"))["sessionId"]
    async with run_gateway(gateway_config(tmp_path)) as portico:
        assert "'demo'" in await expect_error(portico.client.get(f"/session/{session}"), 503)
        assert (await portico.client.get("/sessions")).json() == {"sessions": [session]}
