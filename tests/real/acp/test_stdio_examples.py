"""The unmodified example clients that start their agent, with `portico acp` as the agent: those of the official Python package
and of two older TypeScript packages."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from tests.real.acp.programs import PACKAGES, installed, node, portico_acp, program, run_program
from tests.real.clis import CLIS

EXAMPLES = Path(__file__).with_name("examples")
ASKED = """1. Allow (allow_once)
  2. Always allow write_note in this session (allow_always)
  3. Reject (reject_once)
  4. Never allow write_note in this session (reject_always)
"""


async def test_python_client(tmp_path: Path) -> None:
    command = portico_acp(tmp_path, "echo")
    out = await run_program(sys.executable, EXAMPLES / "client.py", *command, folder=tmp_path, stdin="hello\n\nagain\n")
    assert out == "> | Agent: hello\n> > | Agent: again\n> "


async def test_a_client_without_permission_requests(tmp_path: Path) -> None:
    """The Python example does not support permission requests: its error counts as a denial, and the run continues."""
    out = await run_program(
        sys.executable, EXAMPLES / "client.py", *portico_acp(tmp_path, "script"), folder=tmp_path, stdin="go\n"
    )
    assert "| Agent: You said: go. \n" in out
    log = tmp_path / "data" / "acp.log"
    assert "the client cannot be asked: Method not found" in await asyncio.to_thread(log.read_text)
    assert out.replace("\n| Agent: ", "").endswith("The note is Tool call denied.\n> ")


async def test_python_duet(tmp_path: Path) -> None:
    """It starts the `agent.py` beside it."""
    folder = tmp_path / "examples"
    folder.mkdir()
    for name in ("duet.py", "client.py"):
        shutil.copy(EXAMPLES / name, folder)
    command = portico_acp(tmp_path, "echo")
    (folder / "agent.py").write_text(f"import os\nos.execv({command[0]!r}, {command!r})\n")
    out = await run_program(sys.executable, folder / "duet.py", folder=tmp_path, stdin="hello\n", code=None)
    assert out == "> | Agent: hello\n> "


@pytest.mark.parametrize(
    ("arguments", "answers", "end"),
    [
        (["--yolo", "--prompt", "go"], "", "completed"),
        ([], "go\n4\n:exit\n", "failed"),
    ],
    ids=["allows-all", "never-allows"],
)
async def test_python_gemini(tmp_path: Path, arguments: list[str], answers: str, end: str) -> None:
    """The example for `gemini --acp`, which supports files and terminals, with portico as its gemini."""
    gemini = program(tmp_path / "bin" / "gemini", portico_acp(tmp_path, "script"))
    out = await run_program(
        sys.executable, EXAMPLES / "gemini.py", "--gemini", gemini, *arguments, folder=tmp_path, stdin=answers
    )  # fmt: skip
    assert "Connected to Gemini (protocol v1)" in out
    assert "[agent_thought]\nLet me see.\n" in out
    assert "You said: go. \n" in out
    assert "🔧 write_note a.md (pending)\n" in out
    assert (f"🔐 Permission requested: write_note a.md\n  {ASKED}" in out) == bool(answers)
    assert f"🔧 Tool call `call_1_1` → {end}\n" in out
    assert ("The note is written.\n" in out) == (end == "completed")


async def test_typescript_client(tmp_path: Path) -> None:
    """It starts `npx tsx agent.ts`. 1.9.0 is the last release that has its examples; 2.4.0 is in test_clients.py."""
    client = installed(PACKAGES / "acp-sdk-1" / "dist" / "examples" / "client.js")
    await _typescript(tmp_path, node(), client)


async def test_first_typescript_client(tmp_path: Path) -> None:
    """The client of the package's first name, 0.4.5: in TypeScript, which imports ../acp.js."""
    package = installed(PACKAGES / "acp-sdk-0")
    folder = tmp_path / "typescript"
    (folder / "examples").mkdir(parents=True)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "acp.js").write_text(f'export * from "{package}/dist/acp.js"\n')
    client = shutil.copy(package / "typescript" / "examples" / "client.ts", folder / "examples")
    # This Node strips the types.
    await _typescript(tmp_path, installed(CLIS / "acpx" / "node_modules" / ".bin" / "node"), Path(client))


async def _typescript(folder: Path, runtime: Path, client: Path) -> str:
    npx = program(folder / "bin" / "npx", portico_acp(folder, "script"))
    out = await run_program(runtime, client, folder=folder, stdin="1\n", env={"PATH": f"{npx.parent}:/usr/bin:/bin"})
    assert "Connected to agent (protocol v1)" in out
    assert "[agent_thought_chunk]\n" in out
    assert "You said: Hello, age\nnt!. \n" in out
    assert "🔧 write_note a.md (pending)\n" in out
    assert "🔐 Permission requested: write_note a.md\n" in out
    assert "".join(f"   {line.strip()}\n" for line in ASKED.splitlines()) in out
    assert "🔧 Tool call `call_1_1` updated: completed\n" in out
    assert "The note is written.\n" in out
    assert out.rstrip().endswith("Agent completed with: end_turn")
    return out
