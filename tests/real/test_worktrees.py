"""The real CLIs in git worktrees of their sessions, on the machine and in bwrap: each writes in its own, and both are merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.worktrees.repositories import BASE, folder_of, git, listed, make_repository, state_of
from tests.model_server import gemini as gemini_server
from tests.model_server import openai as openai_server
from tests.real.clis import BIN, CLIS, require
from tests.real.codex.conftest import make_home as make_codex_home
from tests.real.conftest import make_home as make_claude_home
from tests.real.gemini import agent_config as gemini_agent
from tests.real.models import model_on_loopback
from tests.real.processes import tear_down
from tests.support.container_runtimes import put_into
from tests.support.daemon import gateway_config, run_gateway

TOOLS = {"claude": ["Bash"], "codex": ["shell", "apply_patch"], "gemini": ["run_shell_command"]}
"""What has to be trusted for a command that writes in the working folder."""


@dataclass
class Cli:
    """A CLI with an empty home folder and a model server, and the configuration of its agent in worktrees of `repository`."""

    name: str
    home: Path
    base: Path
    repository: Path
    agent: dict[str, Any]

    def config(self) -> dict[str, Any]:
        return gateway_config(self.base, agents={self.name: self.agent}, limits={"start": 120.0})

    async def new_session(self, client: httpx.AsyncClient) -> str:
        agent = {"name": self.name, "tools": [{"name": name, "trust": True} for name in TOOLS[self.name]]}
        answer = await client.post(f"{BASE}/sessions", json={"agent": agent})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["sessionId"])


@pytest.fixture(params=sorted(TOOLS))
async def cli(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cli]:
    name: str = request.param
    program = require(BIN / name)
    async with AsyncExitStack() as stack:
        if name == "claude":
            model = await stack.enter_async_context(model_on_loopback())
            made = make_claude_home(tmp_path, program, model.url)
            home, agent = made.path, made.agent
        elif name == "codex":
            server = await stack.enter_async_context(openai_server.model_server())
            codex = make_codex_home(tmp_path, program, server.url)
            home, agent = codex.path, codex.agent
        else:
            home = tmp_path / "home"
            home.mkdir()
            gemini = await stack.enter_async_context(gemini_server.model_server())
            agent = gemini_agent(home, tmp_path / "work", gemini.url)
        repository = make_repository(tmp_path / "project")
        yield Cli(name, home, tmp_path, repository, {**agent, "cwd": str(repository), "worktree": True})
    await tear_down(home, [])


async def turn(client: httpx.AsyncClient, session: str, text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], "stream": "none"}
    answer = await client.post(f"{BASE}/sessions/{session}/turns", json=body)
    assert answer.status_code == 200 and answer.json()["stopReason"] == "end_turn", answer.text


@pytest.mark.parametrize("runtime", ["node", "bwrap"])
async def test_two_sessions_of_a_repository_at_once(cli: Cli, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if runtime != "node":
        put_into(runtime, cli.agent, cli.home, monkeypatch, CLIS.resolve())
    async with run_gateway(cli.config()) as running:
        client = running.client
        client.timeout = httpx.Timeout(120)
        sessions = await asyncio.gather(cli.new_session(client), cli.new_session(client))
        names = [f"{word}.txt" for word in ("one", "two")]
        runs = [turn(client, one, f"[[run:pwd > {name}]]") for one, name in zip(sessions, names, strict=True)]
        await asyncio.gather(*runs)
        assert sorted(await listed(client)) == sorted(sessions)
        assert git(cli.repository, "status", "--porcelain") == ""
        for session, name in zip(sessions, names, strict=True):
            folder = await folder_of(client, session)
            assert (folder / name).read_text() == f"{folder}\n"
            state = await state_of(client, session)
            assert ([one["path"] for one in state["files"]], state["uncommitted"]) == ([name], [name])
            answer = await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": name})
            assert answer.status_code == 201, answer.text
        merges = [(await client.post(f"{BASE}/worktrees/{session}/merge")).json() for session in sessions]
        assert [one["outcome"] for one in merges] == ["fast_forward", "merge_commit"]
        assert all((cli.repository / name).exists() for name in names)
        # The session goes on in its worktree, by the CLI's own session, and is removed with it.
        await turn(client, sessions[0], "[[run:pwd > later.txt]]")
        refused = await client.delete(f"{BASE}/worktrees/{sessions[0]}")
        assert refused.status_code == 409 and "later.txt" in refused.text
        for session, force in zip(sessions, ("true", "false"), strict=True):
            answer = await client.delete(f"{BASE}/worktrees/{session}", params={"force": force})
            assert answer.status_code == 204, answer.text
        assert await listed(client) == []
        assert git(cli.repository, "branch", "--list", "portico/*") == ""
        assert git(cli.repository, "status", "--porcelain") == ""
