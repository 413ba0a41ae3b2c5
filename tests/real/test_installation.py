"""The wheel installed by uv and by pipx as on a new machine: an empty home, a PATH without a compiler, and only wheels."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.real.clis import CLIS, require
from tests.wheel import build_wheel

INSTALLERS = CLIS / "python" / "bin"
SHELL = ("sh", "env", "dirname", "basename", "readlink", "cat", "uname", "id")
"""The programs on PATH, besides Python."""
_OF_NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "PIP_CERT", "SSL_CERT_FILE")
NETWORK = {name: os.environ[name] for name in _OF_NETWORK if name in os.environ}
"""How the package registry is reached. Read before a fixture clears the environment of each test."""
ONLY_WHEELS = {"PIP_ONLY_BINARY": ":all:", "UV_NO_BUILD": "1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in SHELL:
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    home = tmp_path / "home"
    home.mkdir()
    path = f"{home}/.local/bin:{programs}"
    assert not any(shutil.which(compiler, path=path) for compiler in ("cc", "gcc", "clang", "c++", "rustc", "cargo"))
    return {**NETWORK, **ONLY_WHEELS, "HOME": str(home), "PATH": path, "UV_PYTHON_DOWNLOADS": "never"}


async def run(environment: dict[str, str], *command: str) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), 170)
    assert process.returncode == 0, f"{command}: {out.decode()}{err.decode()}"
    return out.decode()


@asynccontextmanager
async def serving(environment: dict[str, str], program: str) -> AsyncIterator[str]:
    """Run `portico serve`, and yield its address."""
    process = await asyncio.create_subprocess_exec(
        program, "serve", "--port", "0", env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), 60)).decode().split()[-1]
    finally:
        process.terminate()
        assert await process.wait() == 0


@pytest.mark.parametrize(
    "command", [["uv", "tool", "install"], ["pipx", "install"], ["pipx", "install", "--backend", "pip"]], ids="-".join
)
async def test_installed_command_runs_the_first_steps(command: list[str], wheel: Path, environment: dict[str, str]) -> None:
    await run(environment, str(require(INSTALLERS / command[0], CLIS / "python")), *command[1:], str(wheel))
    program = shutil.which("portico", path=environment["PATH"])
    assert program is not None
    assert (await run(environment, program, "run", "echo", "hello")).strip() == "hello"
    key = (await run(environment, program, "key")).strip()
    async with serving(environment, program) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        authorized = {"Authorization": f"Bearer {key}"}
        answer = await client.post("/v1/execute", json={"driver": "echo", "task": "hello"}, headers=authorized)
        drivers = (await client.get("/v1/drivers", headers=authorized)).json()["drivers"]
        document = (await client.get("/openapi.json", headers=authorized)).json()
    assert '"text":"hello"' in answer.text
    assert {driver["driver"] for driver in drivers} >= {"acp", "claude", "codex", "echo", "gemini", "script"}
    assert "/v1/execute" in document["paths"]


@pytest.mark.parametrize("version", ["3.11", "3.14"])
@pytest.mark.parametrize("platform", ["aarch64-apple-darwin", "x86_64-apple-darwin", "aarch64-unknown-linux-gnu"])
async def test_other_platforms_need_no_compiler(
    platform: str, version: str, wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    uv = require(INSTALLERS / "uv", CLIS / "python")
    target = ("--python-platform", platform, "--python-version", version, "--target", str(tmp_path / "target"))
    # It fails if a dependency has no wheel for the platform.
    await run(environment, str(uv), "pip", "install", "--dry-run", "--no-build", *target, str(wheel))
