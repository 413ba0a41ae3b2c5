"""Portico installed by uv, pipx and pip as on a new machine: an empty home, a PATH without a compiler, and only wheels."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.conftest import write_config
from tests.real.clis import CLIS, require
from tests.support.postgresql import server
from tests.support.wheel import build_wheel, copy_source

TIMEOUT = 600
"""Seconds for a command. Two installations by pip took 180 s on two cores with a load of 20."""
pytestmark = pytest.mark.timeout(900)
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
    for name in ("uv", "pipx"):
        (programs / name).symlink_to(require(INSTALLERS / name, CLIS / "python"))
    home = tmp_path / "home"
    home.mkdir()
    path = f"{home}/.local/bin:{programs}"
    assert not any(shutil.which(compiler, path=path) for compiler in ("cc", "gcc", "clang", "c++", "rustc", "cargo"))
    return {**NETWORK, **ONLY_WHEELS, "HOME": str(home), "PATH": path, "UV_PYTHON_DOWNLOADS": "never"}


async def run(environment: dict[str, str], *command: str, exit_code: int = 0) -> str:
    """Run the command, and return what it prints to standard output, and if it fails as expected, to standard error."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    try:
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == exit_code, f"{command}: {out.decode()}{err.decode()}"
    return out.decode() + (err.decode() if exit_code else "")


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


async def add_postgresql(environment: dict[str, str], program: str) -> str:
    """Run the command that the error about the missing extra has, and return it. Afterwards the daemon uses the store."""
    store = {"url": server().url(server().create_database())}
    environment = {**environment, "PORTICO_CONFIG": str(write_config(Path(environment["HOME"]), {"store": store}))}
    refused = await run(environment, program, "serve", "--port", "0", exit_code=1)
    assert "needs psycopg" in refused
    command = refused.rpartition("Run: ")[2].strip()
    await run(environment, "sh", "-c", command)
    async with serving(environment, program) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get("/readyz")).status_code == 200
    return command


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("uv tool install", "uv tool install '{wheel}[postgresql]'"),
        ("pipx install", "pipx inject portico-gateway 'psycopg[binary]>=3.2,<4'"),
        ("pipx install --backend pip", "pipx inject portico-gateway 'psycopg[binary]>=3.2,<4'"),
    ],
)
async def test_installed_command_runs_the_first_steps(command: str, extra: str, wheel: Path, environment: dict[str, str]) -> None:
    await run(environment, *command.split(), str(wheel))
    program = shutil.which("portico", path=environment["PATH"])
    assert program is not None and shutil.which("portico-gateway", path=environment["PATH"]) is not None
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
    assert await add_postgresql(environment, program) == extra.format(wheel=wheel)


async def test_uv_tool_of_the_folder_gets_the_extra(environment: dict[str, str], tmp_path: Path) -> None:
    del environment["UV_NO_BUILD"]
    source = copy_source(tmp_path / "the source")
    await run(environment, "uv", "tool", "install", "--editable", str(source), "--with", "sniffio")
    program = shutil.which("portico", path=environment["PATH"])
    assert program is not None
    command = f"uv tool install --editable '{source}[postgresql]' --with sniffio"
    assert await add_postgresql(environment, program) == command


@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
async def test_environment_of_pip_gets_the_extra(
    editable: bool, wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    python = tmp_path / "own environment" / "bin" / "python"
    await run(environment, "python3", "-m", "venv", str(python.parents[1]))
    origin = ["--editable", str(copy_source(tmp_path / "source"))] if editable else [str(wheel)]
    await run(environment, str(python), "-m", "pip", "install", *origin)
    command = f"'{python}' -m pip install 'psycopg[binary]>=3.2,<4'"
    assert await add_postgresql(environment, str(python.with_name("portico"))) == command


async def test_environment_of_uv_gets_the_extra(wheel: Path, environment: dict[str, str], tmp_path: Path) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    await run(environment, "uv", "venv", "--python", "python3", str(python.parents[1]))
    await run(environment, "uv", "pip", "install", "--python", str(python), str(wheel))
    command = f"uv pip install --python {python} 'psycopg[binary]>=3.2,<4'"
    assert await add_postgresql(environment, str(python.with_name("portico"))) == command


async def test_package_of_the_former_name_is_replaced(wheel: Path, environment: dict[str, str], tmp_path: Path) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    await run(environment, "python3", "-m", "venv", str(python.parents[1]))
    for installed in (build_wheel(tmp_path / "former", name="portico"), wheel):
        await run(environment, str(python), "-m", "pip", "install", str(installed))
    program = str(python.with_name("portico"))
    # 1: no agent is installed.
    report = json.loads(await run(environment, program, "doctor", "--json", exit_code=1))
    [command] = [check["command"] for check in report["checks"] if check["name"] == "Portico"]
    await run(environment, "sh", "-c", command)
    report = json.loads(await run(environment, program, "doctor", "--json", exit_code=1))
    assert [check["status"] for check in report["checks"] if check["name"] == "Portico"] == ["ok"]
    listed = json.loads(await run(environment, str(python), "-m", "pip", "list", "--format", "json"))
    assert {"portico-gateway"} == {package["name"] for package in listed if package["name"].startswith("portico")}


@pytest.mark.parametrize("version", ["3.11", "3.14"])
@pytest.mark.parametrize("platform", ["aarch64-apple-darwin", "x86_64-apple-darwin", "aarch64-unknown-linux-gnu"])
async def test_other_platforms_need_no_compiler(
    platform: str, version: str, wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    target = ("--python-platform", platform, "--python-version", version, "--target", str(tmp_path / "target"))
    # It fails if a dependency has no wheel for the platform.
    await run(environment, "uv", "pip", "install", "--dry-run", "--no-build", *target, str(wheel))
