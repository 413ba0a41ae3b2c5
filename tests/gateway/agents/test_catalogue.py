"""Agents of the catalogue that are offered because their program is on PATH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.agents.configured_agents import DEFAULT_AGENTS, Agents
from gateway.config import parse
from tests.support.daemon import gateway_config, run_gateway


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    """An environment with the programs of three agents on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("opencode", "vibe-acp", "goose"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder), "HOME": str(tmp_path), "OPENCODE_CONFIG": "mine", "MISTRAL_API_KEY": "key", "GOOSE_MODEL": "m"}


def agents(environ: dict[str, str], tmp_path: Path, **tables: Any) -> Agents:
    return Agents(parse({"agents": tables.pop("agents", {}), "server": tables.pop("server", {})}), environ, tmp_path)


def test_those_with_a_program_on_path_are_there(path: dict[str, str], tmp_path: Path) -> None:
    found = agents(path, tmp_path)
    assert [agent.name for agent in found] == ["claude", "codex", "gemini", "opencode", "vibe", "echo"]
    opencode, vibe = found.get("opencode"), found.get("vibe")
    assert (opencode.title, opencode.problem(), opencode.program()) == ("OpenCode", None, f"{path['PATH']}/opencode")
    assert opencode.environment.items() >= {("OPENCODE_CONFIG", "mine")}
    assert "GOOSE_MODEL" not in opencode.environment
    assert vibe.environment["MISTRAL_API_KEY"] == "key" and "key" in vibe.secrets
    assert vibe.spec({}).options["mode"] == "ask"


def test_a_program_of_an_ambiguous_name_needs_an_entry(path: dict[str, str], tmp_path: Path) -> None:
    assert agents(path, tmp_path).find("goose") is None
    assert agents(path, tmp_path, agents={"goose": {"driver": "goose"}}).get("goose").problem() is None


def test_a_setting_turns_it_off(path: dict[str, str], tmp_path: Path) -> None:
    found = agents(path, tmp_path, server={"discover_agents": False})
    assert sorted(agent.name for agent in found) == sorted(DEFAULT_AGENTS)
    entry = agents(path, tmp_path, server={"discover_agents": False}, agents={"opencode": {"driver": "opencode"}})
    assert entry.get("opencode").problem() is None


def test_an_entry_overrides_it(path: dict[str, str], tmp_path: Path) -> None:
    mine = {"driver": "opencode", "title": "Mine", "env": {"OPENCODE_PERMISSION": ""}, "options": {"mode": "plan"}}
    opencode = agents(path, tmp_path, agents={"opencode": mine}).get("opencode")
    assert (opencode.title, opencode.environment["OPENCODE_PERMISSION"], opencode.spec({}).options["mode"]) == (
        "Mine",
        "",
        "plan",
    )
    other = agents(path, tmp_path, agents={"opencode": {"driver": "echo"}}).get("opencode")
    assert other.info.title == "Echo"


@pytest.mark.parametrize(
    ("name", "variable", "asks"),
    [("opencode", "OPENCODE_PERMISSION", '{"*":"ask","portico_*":"allow"}'), ("goose", "GOOSE_MODE", "approve")],
)
def test_only_the_configuration_changes_that_an_agent_asks(
    path: dict[str, str], tmp_path: Path, name: str, variable: str, asks: str
) -> None:
    """The gateway is often started by a shell that has the variable for the user's own terminal."""
    environ = {**path, variable: "auto"}
    agent = agents(environ, tmp_path, agents={name: {"driver": name}}).get(name)
    assert agent.environment[variable] == asks
    assert agent.spec({}).env[variable] == asks
    mine = {"driver": name, "env": {variable: "auto"}}
    assert agents(environ, tmp_path, agents={name: mine}).get(name).environment[variable] == "auto"


async def test_what_can_be_installed_is_in_the_list_of_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with run_gateway(gateway_config(tmp_path)) as running:
        drivers = {driver["driver"]: driver for driver in (await running.client.get("/v1/drivers")).json()["drivers"]}
    assert (drivers["qwen"]["install"], drivers["qwen"]["agents"]) == ("npm install -g @qwen-code/qwen-code", [])
    assert drivers["cursor"]["install"] is None
