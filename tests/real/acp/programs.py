"""Runs unmodified example programs of the protocol's packages with `portico acp` as their agent."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import write_config
from tests.real.clis import CLIS, ROOT, require
from tests.support.daemon import gateway_config

PACKAGES = CLIS / "acp-client" / "node_modules"
STEPS = [
    {"thinking": "Let me see."},
    {"text": "You said: {prompt}. "},
    {"tool_call": {"name": "write_note", "input": {"path": "a.md", "text": "A"}, "result": "written"}},
    {"text": "The note is {last_result}."},
]


def portico_acp(folder: Path, agent: str) -> list[str]:
    """The command line of `portico acp AGENT`, whose agent `script` echoes its prompt and requests permission for a tool call."""
    config = gateway_config(
        folder, agents={"script": {"driver": "script", "cwd": str(folder), "options": {"scenario": "note.json"}}}
    )
    (folder / "note.json").write_text(json.dumps({"turns": [{"steps": STEPS}]}))
    return [sys.executable, "-m", "gateway", "acp", "--config", str(write_config(folder, config)), agent]


def program(path: Path, command: list[str]) -> Path:
    """Write a program at `path` that runs this command and ignores its arguments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    path.chmod(0o755)
    return path


def installed(path: Path) -> Path:
    """Return the path of a Node package or program, or skip or fail the test if it does not exist."""
    return require(path, CLIS / "acp-client")


def node() -> Path:
    """The Node of the machine."""
    found = shutil.which("node")
    assert found is not None
    return Path(found)


async def run_program(
    *command: str | Path, folder: Path, stdin: str = "", env: Mapping[str, str] | None = None, code: int | None = 0
) -> str:
    """Run a program in this folder; return its output. Its exit code must be `code`, if that is not None."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), **(env or {})}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=folder,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
    except TimeoutError:
        process.kill()
        raise
    assert code is None or process.returncode == code, out.decode()
    return out.decode()
