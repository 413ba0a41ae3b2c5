"""Fixtures for the pinned gemini CLI behind a gateway, its model server, and an AAP client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import write_config
from tests.model_server.gemini import model_server
from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, text_step
from tests.model_server.serving import ModelServer
from tests.real.aap_client import text_of
from tests.real.clis import BIN, require
from tests.real.processes import tear_down
from tests.support.daemon import Daemon, RunningGateway, gateway_config, run_gateway

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
class Gemini:
    """An empty home folder, a working folder, and the configuration of the agent `gemini`.

    Changes of `agent` apply to gateways that are started afterwards.
    """

    home: Path
    work: Path
    base: Path
    model: ModelServer
    agent: dict[str, Any]
    daemons: list[Daemon] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return self.agent["env"]

    def config(self, **tables: Any) -> dict[str, Any]:
        agents = {"gemini": self.agent, **tables.pop("agents", {})}
        limits = {"start": 120.0, **tables.pop("limits", {})}
        return gateway_config(self.base, agents=agents, limits=limits, **tables)

    @asynccontextmanager
    async def gateway(self, **tables: Any) -> AsyncIterator[RunningGateway]:
        """A gateway in this process."""
        async with run_gateway(self.config(**tables)) as running:
            running.client.timeout = httpx.Timeout(120)
            yield running

    async def daemon(self, **tables: Any) -> Daemon:
        """Start a daemon in its own process. It is stopped after the test if it still runs."""
        daemon = Daemon(write_config(self.base, self.config(**tables)), self.base)
        self.daemons.append(daemon)
        return await daemon.start()

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
        found = Gemini(home, work, tmp_path, model, agent_config(home, work, model.url))
        yield found
        await tear_down(home, found.daemons)


@pytest.fixture
async def running(gemini: Gemini) -> AsyncIterator[RunningGateway]:
    """A gateway in this process with the real gemini as its agent `gemini`."""
    async with gemini.gateway() as found:
        yield found


@dataclass
class AapSession:
    """An AAP session; `last` is the newest response."""

    client: httpx.AsyncClient
    id: str
    last: dict[str, Any]

    async def post(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        answer = await self.client.post(f"/session/{self.id}", json={"messages": list(messages), **more})
        assert answer.status_code == 200, answer.text
        self.last = answer.json()
        return self.last

    async def send_turn(self, content: Any, stop: str = "end_turn") -> str:
        """Send a user message; return the text of the turn."""
        await self.post({"role": "user", "content": content})
        assert self.last["stopReason"] == stop, self.last
        return text_of(self.last["messages"])

    async def permit(self, granted: bool) -> dict[str, Any]:
        """Grant or deny the pending call."""
        call = self.pending_call()
        return await self.post({"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": granted})

    def pending_call(self) -> dict[str, Any]:
        assert self.last["stopReason"] == "tool_use", self.last
        return self.last["messages"][-1]["content"][-1]

    def results(self) -> list[Any]:
        """The tool results in the newest response."""
        return [message["content"] for message in self.last["messages"] if message["role"] == "tool"]


async def create_session(
    client: httpx.AsyncClient, *messages: Any, tools: dict[str, bool] | None = None, **options: str
) -> AapSession:
    """Create a session. A message that is a string is a user message; `tools` are names with their trust."""
    sent = [message if isinstance(message, dict) else {"role": "user", "content": message} for message in messages]
    grants = [{"name": name, "trust": trust} for name, trust in (tools or {}).items()]
    agent = {"name": "gemini", "options": options, "tools": grants}
    answer = await client.put("/session", json={"agent": agent, "messages": sent})
    assert answer.status_code == 201, answer.text
    return AapSession(client, answer.json()["sessionId"], answer.json())
