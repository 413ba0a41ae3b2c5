"""acpx, a command-line client of the Agent Client Protocol, with `portico acp` as its agent."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_config
from tests.real.clis import CLIS, ROOT, require
from tests.support.acp_client import config
from tests.support.daemon import Daemon

BIN = CLIS / "acpx" / "node_modules" / ".bin"

Acpx = Callable[..., Awaitable[str]]


@pytest.fixture
def acpx(tmp_path: Path) -> Acpx:
    """Runs acpx in the agent's folder, with the agent `script` and tests/scenarios/acp.json; returns its output."""
    require(BIN / "acpx", CLIS / "acpx")
    agent = [sys.executable, "-m", "gateway", "acp", "--config", str(write_config(tmp_path, config(tmp_path)))]
    root = str(ROOT)

    async def run(*arguments: str, more: tuple[str, ...] = (), code: int = 0) -> str:
        env = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8", "PYTHONPATH": root}
        process = await asyncio.create_subprocess_exec(
            str(BIN / "acpx"), "--agent", shlex.join([*agent, *more, "script"]), *arguments,
            env=env, cwd=tmp_path / "work", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            out, _ = await asyncio.wait_for(process.communicate(), 120)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        assert process.returncode == code, out.decode()
        return out.decode()

    return run


def sent(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


async def test_a_task_with_its_edits_allowed(acpx: Acpx, tmp_path: Path) -> None:
    output = await acpx("--approve-all", "exec", "do the work")
    assert "[pending] Write it" in output
    assert "write_note notes/a.md (completed)" in output
    assert output.rstrip().endswith("[done] end_turn")
    assert (tmp_path / "work" / "notes" / "a.md").read_text() == "A\n"


async def test_a_task_with_its_edits_denied(acpx: Acpx, tmp_path: Path) -> None:
    output = await acpx("--deny-all", "--format", "json", "exec", "do the work", code=5)
    results = [m["params"]["update"] for m in sent(output) if m.get("method") == "session/update"]
    ends = {u["toolCallId"]: u["status"] for u in results if u["sessionUpdate"] == "tool_call_update"}
    assert ends["note-1"] == "failed"
    assert not (tmp_path / "work" / "notes").exists()


async def test_a_session_continues_across_commands(acpx: Acpx) -> None:
    session = (await acpx("sessions", "new")).split()[-1]
    # By its own default the process that acpx keeps for a session exits after 300 s. One that exits just then refuses a command.
    assert "Hello, you said: first" in await acpx("--ttl", "60", "first")
    assert "Hello, you said: second" in await acpx("--ttl", "60", "second")
    assert session in await acpx("sessions", "close")


async def test_over_a_daemon(acpx: Acpx, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "config.toml", tmp_path)
    await daemon.start()
    try:
        output = await acpx("exec", "over a daemon", more=("--connect", daemon.url))
        assert "Hello, you said: over a daemon" in output
        async with daemon.client() as client:
            assert len((await client.get("/sessions")).json()["sessions"]) == 1
    finally:
        await daemon.stop()
