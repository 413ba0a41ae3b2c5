"""Example programs of the protocol's packages, their files unchanged, with `portico acp` where they look for their agent."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import write_config
from tests.daemon import gateway_config

ROOT = Path(__file__).parents[3]
CLIS = ROOT / ".clis"
PACKAGES = CLIS / "acp-client" / "node_modules"
STEPS = [
    {"thinking": "Let me see."},
    {"text": "You said: {prompt}. "},
    {"tool_call": {"name": "write_note", "input": {"path": "a.md", "text": "A"}, "result": "written"}},
    {"text": "The note is {last_result}."},
]


def portico_acp(folder: Path, agent: str) -> list[str]:
    """The command line of `portico acp AGENT`, where `script` says what it was told and asks before it writes a note."""
    config = gateway_config(
        folder, agents={"script": {"driver": "script", "cwd": str(folder), "options": {"scenario": "note.json"}}}
    )
    (folder / "note.json").write_text(json.dumps({"turns": [{"steps": STEPS}]}))
    return [sys.executable, "-m", "gateway", "acp", "--config", str(write_config(folder, config)), agent]


def program(place: Path, command: list[str]) -> Path:
    """A program of that name that is this command, whatever its arguments."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    place.chmod(0o755)
    return place


def installed(place: Path) -> Path:
    """A node package or program. Without it the test is skipped by hand, and fails in CI and after `make test-real`."""
    if not place.exists():
        if "CI" in os.environ or (CLIS / "acp-client" / ".installed").exists():
            pytest.fail(f"{place} is missing although it should be installed; try make clean test-real")
        pytest.skip(f"{place.name} is not installed; make test-real installs it")
    return place


def node() -> Path:
    """The machine's Node."""
    found = shutil.which("node")
    assert found is not None
    return Path(found)


async def received_text(
    *command: str | Path, folder: Path, stdin: str = "", env: Mapping[str, str] | None = None, code: int | None = 0
) -> str:
    """What it prints, with this to read, in this folder; its exit code must be this."""
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
