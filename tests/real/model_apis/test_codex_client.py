"""The codex CLI as a client of `/v1/responses`, set up as docs/clients/codex.md says, with the agent `script` as its model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.acp.programs import run_program
from tests.real.clis import BIN, require
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway

COMMAND = {"app_tool": {"id": "c1", "name": "exec_command", "input": {"cmd": "echo from-$((40 + 2)) > made.txt; cat made.txt"}}}
TURNS: list[Any] = [
    {"when": "run the command", "steps": [{"text": "I look."}, COMMAND, {"text": "It gave {last_result}"}]},
    {"when": "recall", "steps": [{"remember": True}]},
    {"when": "a title", "steps": [{"text": 'Sure: {"title": "One"}'}]},
]
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"], "additionalProperties": False}


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    (tmp_path / "scene.json").write_text(json.dumps({"turns": TURNS}))
    agent = {"driver": "script", "cwd": str(tmp_path), "options": {"scenario": "scene.json"}}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent})) as portico:
        yield portico


async def codex(portico: RunningGateway, folder: Path, *arguments: str) -> str:
    """Run codex without a question, and return what it prints: the last line is the end of the model's last message."""
    provider = f'{{name="Portico", base_url="{portico.url}/v1", env_key="PORTICO_KEY", wire_api="responses"}}'
    setup = ("-c", 'model_provider="portico"', "-c", f"model_providers.portico={provider}", "-m", "script")
    home = folder / ".codex"
    home.mkdir(parents=True, exist_ok=True)
    env = {"CODEX_HOME": str(home), "PORTICO_KEY": KEY}
    return await run_program(require(BIN / "codex"), "exec", *arguments, *setup, "--skip-git-repo-check", folder=folder, env=env)


async def test_codex_runs_its_tools_for_the_agent(scripted: RunningGateway, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    printed = await codex(scripted, folder, "--sandbox", "danger-full-access", "run the command")
    assert "from-42" in printed and (folder / "made.txt").read_text() == "from-42\n"
    [session] = scripted.gateway.sessions.held
    names = {tool.name for tool in session.config.app_tools or ()}
    assert "exec_command" in names and any("__spawn_agent" in name for name in names)
    printed = await codex(scripted, folder, "resume", "--last", "recall")
    assert "run the command" in printed


async def test_an_answer_by_a_schema(scripted: RunningGateway, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "schema.json").write_text(json.dumps(TITLE))
    printed = await codex(scripted, folder, "--output-schema", "schema.json", "a title")
    assert json.loads(printed.splitlines()[-1]) == {"title": "One"}
