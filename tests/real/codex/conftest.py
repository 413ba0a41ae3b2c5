"""Fixtures: the pinned codex CLI in an empty home of its own, a model server, and gateways in front of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_config
from tests.daemon import Daemon, RunningGateway, gateway_config, run_gateway
from tests.model_server.openai import OpenAIServer, model_server
from tests.real.conftest import tear_down

CLIS = Path(__file__).parents[3] / ".clis"
DUMMY_KEY = "sk-dummy-0123456789abcdef"
CONFIG = """
model = "gpt-5.5"
model_provider = "scripted"
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
"""


@dataclass
class Home:
    """An empty home, a folder to work in, and the `codex` agent that lives there. Change `agent` before the gateway."""

    path: Path
    work: Path
    base: Path
    agent: dict[str, Any]
    daemons: list[Daemon] = field(default_factory=list)

    @property
    def codex(self) -> Path:
        """The CLI's own home."""
        return self.path / ".codex"

    def config(self, **tables: Any) -> dict[str, Any]:
        """A gateway's configuration with this agent."""
        return gateway_config(self.base, agents={"codex": self.agent}, **tables)

    @asynccontextmanager
    async def gateway(self, **tables: Any) -> AsyncIterator[RunningGateway]:
        """A gateway in this process."""
        async with run_gateway(self.config(**tables)) as running:
            running.client.timeout = 120
            # Until the CLI has been asked what it is: from here on each process of the home is a session's or a task's.
            await running.gateway.discovery.all_agents()
            yield running

    async def daemon(self, **tables: Any) -> Daemon:
        """A started daemon, a process of its own; it is stopped after the test if it still runs."""
        daemon = Daemon(write_config(self.base, self.config(**tables)), self.base)
        self.daemons.append(daemon)
        await daemon.start()
        async with daemon.client() as client:
            await client.get("/meta")
        return daemon

    def threads(self) -> list[Path]:
        """What the CLI keeps of its own sessions."""
        return list((self.codex / "sessions").rglob("*.jsonl"))


@pytest.fixture(scope="session")
def codex_program() -> Path:
    """The pinned CLI. Without it there is nothing to test: skipped by hand, failed in CI and after `make test-real`."""
    program = CLIS / "node_modules" / ".bin" / "codex"
    if not program.exists():
        if "CI" in os.environ or (CLIS / ".installed").exists():
            pytest.fail(f"{program} is missing although it should be installed; try make clean test-real")
        pytest.skip("the codex CLI is not installed; make test-real installs it")
    return program


@pytest.fixture
async def model() -> AsyncIterator[OpenAIServer]:
    """A model server."""
    async with model_server() as server:
        yield server


@pytest.fixture
async def home(tmp_path: Path, codex_program: Path, model: OpenAIServer) -> AsyncIterator[Home]:
    """A home for the CLI. When the test is over and its gateways are stopped, nothing may run there any more."""
    path, work = tmp_path / "home", tmp_path / "work"
    (path / ".codex").mkdir(parents=True)
    work.mkdir()
    (path / ".codex" / "config.toml").write_text(CONFIG.format(url=model.url))
    env = {
        "HOME": str(path),
        "CODEX_HOME": str(path / ".codex"),
        "PATH": f"{codex_program.parent}:/usr/local/bin:/usr/bin:/bin",
        "SCRIPTED_KEY": DUMMY_KEY,
    }
    home = Home(path, work, tmp_path, {"driver": "codex", "cwd": str(work), "env": env})
    yield home
    await tear_down(home)


@pytest.fixture
async def portico(home: Home) -> AsyncIterator[RunningGateway]:
    """A gateway in this process, with the real codex as its agent `codex`."""
    async with home.gateway() as running:
        yield running
