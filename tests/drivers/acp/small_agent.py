"""Runs tests.support.acp_agent, made with the protocol's official package, and plays an agent to a codec line by line."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from drivers.acp.agent_profile import AgentProfile
from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits
from drivers.contract.events import Awaiting, OutputEvent, SessionEnd, ToolResult
from drivers.runtime.cli_agent import CliAgent
from tests.drivers.small_programs import marked
from tests.support.fork_server import forked_command

ROOT = Path(__file__).parents[3]
LIMITS = Limits(start=60, idle=60, total=120, grace=5)
MARK = f"acptest{os.getpid()}"
PIXEL = "data:image/png;base64,iVBORw0KGgo="

Open = Callable[..., Awaitable[CliAgent]]


def agent_args() -> tuple[str, ...]:
    """The arguments with which Python runs the agent."""
    return forked_command("tests.support.acp_agent")[1:]


def environment(tmp_path: Path, flags: str = "") -> dict[str, str]:
    sessions = tmp_path / "sessions"
    sessions.mkdir(exist_ok=True)
    (tmp_path / "work").mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "ACP_AGENT_SESSIONS": str(sessions),
        "ACP_AGENT_FLAGS": flags,
    }


async def run_events(agent: CliAgent, prompt: str | Prompt | None = None) -> list[OutputEvent]:
    """The events of a prompt, until the client has to act or the run has ended."""
    if prompt is not None:
        await agent.prompt(prompt if isinstance(prompt, Prompt) else Prompt(prompt))
    events: list[OutputEvent] = []
    while not events or not isinstance(events[-1], Awaiting | SessionEnd):
        events += await asyncio.wait_for(agent.receive(), 60)
    return events


def sleepers() -> list[psutil.Process]:
    return [process for process in marked(MARK) if _name(process) == "sleep"]


def _name(process: psutil.Process) -> str | None:
    """The name of a process, which may have ended since it was found."""
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return None


def agent_text(events: list[OutputEvent]) -> str:
    return "".join(event.text for event in events if event.kind == "agent_token")


def end(events: list[OutputEvent]) -> tuple[int, str]:
    assert [isinstance(event, SessionEnd) for event in events].count(True) == 1
    last = events[-1]
    assert isinstance(last, SessionEnd)
    return last.exit_code, last.stop_reason


def result(events: list[OutputEvent]) -> ToolResult:
    (found,) = (event for event in events if isinstance(event, ToolResult))
    return found


class Agent:
    """Plays the agent to a codec."""

    def __init__(
        self, profile: AgentProfile | None = None, mode: str = "", grants: Grants | None = None, *, terminals: bool = True
    ) -> None:
        request = SessionRequest("/work", mode=mode, read_files=True, write_files=True, terminals=terminals)
        self.codec = AcpCodec(request, grants or Grants(), profile)
        self.answer(protocolVersion=1)

    def answer(self, **result: Any) -> list[OutputEvent]:
        """Respond to the codec's latest request."""
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return self.send({"id": lines[-1]["id"], "result": result})

    def open(self) -> None:
        modes = {"availableModes": [{"id": "calm", "name": "Calm"}], "currentModeId": "calm"}
        assert self.answer(sessionId="s", modes=modes) == []

    def update(self, kind: str, session: str = "s", **fields: Any) -> list[OutputEvent]:
        params = {"sessionId": session, "update": {"sessionUpdate": kind, **fields}}
        return self.send({"method": "session/update", "params": params})

    def commands(self, *commands: dict[str, Any], session: str = "s") -> list[OutputEvent]:
        return self.update("available_commands_update", session, availableCommands=list(commands))

    def send(self, message: dict[str, Any]) -> list[OutputEvent]:
        return self.codec.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())
