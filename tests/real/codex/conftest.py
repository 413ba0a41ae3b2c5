"""Fixtures: the pinned codex CLI with an empty home folder, a model server, and gateways with the agent `codex`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drivers.runtime.sandbox import unavailable
from tests.model_server.openai import OpenAIServer, model_server
from tests.real import home as homes
from tests.real.clis import BIN, require
from tests.real.processes import tear_down
from tests.real.real_cli import DUMMY_KEY, Codex
from tests.support.daemon import Daemon, RunningGateway

needs_sandbox = pytest.mark.skipif(unavailable() is not None, reason=f"no sandbox here: {unavailable()}")
CONFIG = Codex.SETTINGS


class Home(homes.Home):
    """The home folder of codex, and gateways with the agent `codex`."""

    def use_sandbox(self) -> None:
        """Put the agent into the gateway's sandbox."""
        self.agent["sandbox"] = "workspace-write"

    @property
    def codex(self) -> Path:
        """The folder CODEX_HOME."""
        return self.path / ".codex"

    @asynccontextmanager
    async def gateway(self, **tables: Any) -> AsyncIterator[RunningGateway]:
        """A gateway in this process."""
        async with super().gateway(**tables) as running:
            # Wait for the probe of the CLI: every later process with this home belongs to a session or a task.
            await running.gateway.discovery.all_agents()
            yield running

    async def daemon(self, env: dict[str, str] | None = None, **tables: Any) -> Daemon:
        daemon = await super().daemon(env, **tables)
        async with daemon.client() as client:
            await client.get("/meta")
        return daemon

    def threads(self) -> list[Path]:
        """The thread files of the CLI."""
        return list((self.codex / "sessions").rglob("*.jsonl"))


@pytest.fixture(scope="session")
def codex_program() -> Path:
    """The pinned CLI."""
    return require(BIN / "codex")


@pytest.fixture
async def model() -> AsyncIterator[OpenAIServer]:
    """A model server."""
    async with model_server() as server:
        yield server


def make_home(base: Path, program: Path, model: str) -> Home:
    """Create an empty home folder below `base` for this CLI, with the model server at the URL `model`."""
    path, work = base / "home", base / "work"
    (path / ".codex").mkdir(parents=True)
    work.mkdir()
    (path / ".codex" / "config.toml").write_text(CONFIG.format(url=model))
    env = {
        "HOME": str(path),
        "CODEX_HOME": str(path / ".codex"),
        "PATH": f"{program.parent}:/usr/local/bin:/usr/bin:/bin",
        "SCRIPTED_KEY": DUMMY_KEY,
    }
    # Its own modes, which are the default for editors, are tested in test_codex_modes.py.
    agent = {"driver": "codex", "cwd": str(work), "env": env, "options": {"mode": "ask"}}
    return Home("codex", path, work, base, agent)


@pytest.fixture
async def home(tmp_path: Path, codex_program: Path, model: OpenAIServer) -> AsyncIterator[Home]:
    """A home folder for the CLI. No process may use it after the test, when its gateways are stopped."""
    home = make_home(tmp_path, codex_program, model.url)
    yield home
    await tear_down(home.path, home.daemons)


@pytest.fixture
async def portico(home: Home) -> AsyncIterator[RunningGateway]:
    """A gateway in this process, with the real codex as its agent `codex`."""
    async with home.gateway() as running:
        yield running
