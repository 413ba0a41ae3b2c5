"""An editor that connects to `portico acp` with the official Python client of the protocol."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acp import spawn_agent_process
from acp.schema import AllowedOutcome, RequestPermissionResponse

from tests.conftest import write_config

SERVER = Path(__file__).parent / "small_mcp_server.py"


class Editor:
    """A client that records updates and permission requests; `choose` returns the kind of option for a tool call."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.permission_requests: list[Any] = []
        self.choose: Callable[[Any], str] = lambda call: "allow_once"
        self.changed = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.changed.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> RequestPermissionResponse:
        self.permission_requests.append(tool_call)
        self.changed.set()
        chosen = next(option for option in options if option.kind == self.choose(tool_call))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id))

    @property
    def text(self) -> str:
        return "".join(u.content.text for u in self.updates if u.session_update == "agent_message_chunk")

    def of(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    async def until(self, seen: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not seen():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def editor_of(agent: str, base: Path, home: Path, config: dict[str, Any]) -> AsyncIterator[tuple[Editor, Any, Any]]:
    """Start `portico acp AGENT`; yield an editor, its connection and the process."""
    async with editor_with(agent, write_config(base, config), home) as found:
        yield found


@asynccontextmanager
async def editor_with(agent: str, config: Path, home: Path) -> AsyncIterator[tuple[Editor, Any, Any]]:
    """Start `portico acp AGENT` with this file of a configuration, which a running daemon may have; yield the same."""
    editor = Editor()
    command = (sys.executable, "-m", "gateway", "acp", "--config", str(config), agent)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    limits = {"limit": 64 * 1024 * 1024}
    async with spawn_agent_process(editor, *command, env=env, cwd=Path.cwd(), transport_kwargs=limits) as (connection, process):
        await connection.initialize(protocol_version=1)
        yield editor, connection, process
