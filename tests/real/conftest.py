"""Fixtures: the pinned claude CLI in an empty home of its own, a model server, and gateways in front of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.discovery import Discovery
from tests.conftest import write_config
from tests.daemon import Daemon, Running, gateway_on, table
from tests.real.gemini import gemini, running
from tests.real.models import Model, model_on_loopback
from tests.real.processes import processes_of, wait_for_exit
from tests.real.tool_bench import bench, unstarted_bench

__all__ = ["bench", "gemini", "running", "unstarted_bench"]

CLIS = Path(__file__).parents[2] / ".clis"
BIN = CLIS / "node_modules" / ".bin"
DUMMY_KEY = "sk-ant-dummy-0123456789abcdef"
KEPT_VARIABLES = ("PATH", "LANG", "TMPDIR", "PYTEST_CURRENT_TEST")


@dataclass
class Home:
    """An empty home, a folder to work in, and the `claude` agent that lives there. Change `agent` before the gateway."""

    path: Path
    work: Path
    base: Path
    agent: dict[str, Any]
    daemons: list[Daemon] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return self.agent["env"]

    def config(self, **tables: Any) -> dict[str, Any]:
        """A gateway's configuration with this agent."""
        return gateway_config(self.base, agents={"claude": self.agent}, **tables)

    @asynccontextmanager
    async def gateway(self, **tables: Any) -> AsyncIterator[RunningGateway]:
        """A gateway in this process."""
        async with run_gateway(self.config(**tables)) as running:
            yield running

    async def daemon(self, env: dict[str, str] | None = None, **tables: Any) -> Daemon:
        """A started daemon, a process of its own; it is stopped after the test if it still runs."""
        daemon = Daemon(write_config(self.base, self.config(**tables)), self.base, env or {})
        self.daemons.append(daemon)
        return await daemon.start()

    def daemon_env(self) -> dict[str, str]:
        """The environment of a gateway's process: a home of its own."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.base), "LANG": "C.UTF-8"}

    def session_files(self) -> list[Path]:
        """What the CLI keeps of its own sessions."""
        return list((self.path / ".claude" / "projects").rglob("*.jsonl"))


@pytest.fixture(scope="session")
def claude_program() -> Path:
    """The pinned CLI. Without it there is nothing to test: skipped by hand, failed in CI and after `make test-real`."""
    program = BIN / "claude"
    if not program.exists():
        if "CI" in os.environ or (CLIS / ".installed").exists():
            pytest.fail(f"{program} is missing although it should be installed; try make clean test-real")
        pytest.skip("the claude CLI is not installed; make test-real installs it")
    return program


@pytest.fixture(autouse=True)
def clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway in this process gives its agents some of its own environment: here it has none to give."""
    for name in set(os.environ) - set(KEPT_VARIABLES):
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def disable_background_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway in this process asks the CLI what it is only when a test wants to know: 3 processes less a test."""
    monkeypatch.setattr(Discovery, "begin", lambda self: None)


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    """A model server."""
    async with model_on_loopback() as server:
        yield server


def make_home(base: Path, program: Path, model: str) -> Home:
    """An empty home below this folder, for this CLI, with the model server at this address."""
    path, work, temporary = base / "home", base / "work", base / "tmp"
    for folder in (path, work, temporary):
        folder.mkdir()
    env = {
        "HOME": str(path),
        "TMPDIR": str(temporary),
        "PATH": f"{program.parent}:/usr/local/bin:/usr/bin:/bin",
        "ANTHROPIC_BASE_URL": model,
        "ANTHROPIC_API_KEY": DUMMY_KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Home(path, work, base, {"driver": "claude", "cwd": str(work), "env": env})


async def tear_down(home: Home) -> None:
    """Stop the daemons of a home; nothing may run there any more."""
    for daemon in home.daemons:
        if daemon.process is not None and daemon.process.returncode is None:
            await daemon.stop()
    left = processes_of(home.path)
    for process in left:
        process.kill()
        await wait_for_exit(process.pid)
    assert not left, f"left behind: {left}"


@pytest.fixture
async def home(tmp_path: Path, claude_program: Path, model: Model) -> AsyncIterator[Home]:
    """A home for the CLI. When the test is over and its gateways are stopped, nothing may run there any more."""
    home = make_home(tmp_path, claude_program, model.url)
    yield home
    await tear_down(home)


@pytest.fixture
async def portico(home: Home) -> AsyncIterator[RunningGateway]:
    """A gateway in this process, with the real claude as its agent `claude`."""
    async with home.gateway() as running:
        yield running
