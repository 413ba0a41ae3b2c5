"""Fixtures: the pinned claude CLI with an empty home folder, a model server, and gateways with the agent `claude`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.agents.discovery import Discovery
from tests.real import home as homes
from tests.real.clis import BIN, require
from tests.real.gemini import gemini, running
from tests.real.models import Model, model_on_loopback
from tests.real.processes import tear_down
from tests.real.tool_bench import bench, unstarted_bench
from tests.support.daemon import RunningGateway

__all__ = ["bench", "gemini", "running", "unstarted_bench"]

# codex 0.169.0 uses an installed bubblewrap for its sandbox. With version 0.8.0 that does not start for a CODEX_HOME below /tmp.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")

DUMMY_KEY = "sk-ant-dummy-0123456789abcdef"
KEPT_VARIABLES = ("PATH", "LANG", "TMPDIR", "PYTEST_CURRENT_TEST")


class Home(homes.Home):
    """The home folder of claude, and gateways with the agent `claude`."""

    def session_files(self) -> list[Path]:
        """The session files of the CLI."""
        return list((self.path / ".claude" / "projects").rglob("*.jsonl"))


@pytest.fixture(scope="session")
def claude_program() -> Path:
    """The pinned CLI."""
    return require(BIN / "claude")


@pytest.fixture(autouse=True)
def clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that a gateway in this process would pass on to its agents."""
    for name in set(os.environ) - set(KEPT_VARIABLES):
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def disable_background_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not probe the CLI at the start of a gateway in this process, which saves 3 processes per test."""
    monkeypatch.setattr(Discovery, "start", lambda self: None)


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    """A model server."""
    async with model_on_loopback() as server:
        yield server


def make_home(base: Path, program: Path, model: str) -> Home:
    """Create an empty home folder below `base` for this CLI, with the model server at the URL `model`."""
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
    # Its own modes, which are the default for editors, are tested in acp/test_claude_modes.py.
    return Home("claude", path, work, base, {"driver": "claude", "cwd": str(work), "env": env, "options": {"mode": "ask"}})


@pytest.fixture
async def home(tmp_path: Path, claude_program: Path, model: Model) -> AsyncIterator[Home]:
    """A home folder for the CLI. No process may use it after the test, when its gateways are stopped."""
    found = make_home(tmp_path, claude_program, model.url)
    yield found
    await tear_down(found.path, found.daemons)


@pytest.fixture
async def portico(home: Home) -> AsyncIterator[RunningGateway]:
    """A gateway in this process, with the real claude as its agent `claude`."""
    async with home.gateway() as running:
        yield running
