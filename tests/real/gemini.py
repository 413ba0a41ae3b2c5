"""Fixtures for the pinned gemini CLI behind a gateway, its model server, and an AAP client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.model_server.gemini import model_server
from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, text_step
from tests.model_server.serving import ModelServer
from tests.real import aap_client
from tests.real import home as homes
from tests.real.clis import BIN, require
from tests.real.processes import tear_down
from tests.support.daemon import RunningGateway

PROGRAM = BIN / "gemini"
KEY = "dummy-gemini-key-0123456789"
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHELL, READ, WRITE = "run_shell_command", "read_file", "write_file"
SCENARIOS = {
    # Different words: the CLI stops a repeated word as a loop.
    "slowcount": Scenario((Step((Text(" ".join(map(str, range(2000)))),), chunk=8, delay=0.05),)),
    "bigshell": Scenario(
        (Step((ToolUse(SHELL, {"command": "head -c 1000000 /dev/zero | tr '\\0' A", "description": "big"}),)), text_step("Seen."))
    ),
}


@dataclass
class Gemini(homes.Home):
    """The home folder of gemini with the server of its model, and gateways with the agent `gemini`."""

    model: ModelServer = field(kw_only=True)

    @property
    def home(self) -> Path:
        return self.path

    def last_request(self) -> dict[str, Any]:
        """The body of the newest model request, without the CLI's internal requests."""
        return next(r.body for r in reversed(self.model.requests) if r.body.get("contents") and r.scenario != "aside")

    def tools(self) -> list[str]:
        """The names of the tools in the newest model request."""
        return [tool["name"] for group in self.last_request().get("tools", []) for tool in group["functionDeclarations"]]


def agent_config(home: Path, work: Path, model: str) -> dict[str, Any]:
    """The configuration of the agent with this home folder, and the model server at the URL `model`."""
    env = {
        "HOME": str(home),
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": model,
    }
    # Its own modes, which are the default for editors, are tested in test_gemini_modes.py.
    return {"driver": "gemini", "cwd": str(work), "env": env, "options": {"mode": "ask"}}


@pytest.fixture
async def gemini(tmp_path: Path) -> AsyncIterator[Gemini]:
    """A home folder for the CLI. No process may use it after the test, when its gateways are stopped."""
    require(PROGRAM)
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir()
    async with model_server(SCENARIOS) as model:
        found = Gemini("gemini", home, work, tmp_path, agent_config(home, work, model.url), model=model)
        yield found
        await tear_down(home, found.daemons)


@pytest.fixture
async def running(gemini: Gemini) -> AsyncIterator[RunningGateway]:
    """A gateway in this process with the real gemini as its agent `gemini`."""
    async with gemini.gateway() as found:
        yield found


create_session = partial(aap_client.create_session, agent="gemini", stop=None)
execute = partial(aap_client.execute, driver="gemini")
