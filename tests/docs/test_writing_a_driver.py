"""The driver that docs/writing-a-driver.md walks through: built as a wheel, installed, run by a daemon, and conforming."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import write_config
from tests.daemon import Daemon, table
from tests.gateway.talk import create, execute, say

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "writing-a-driver.md").read_text()
CHECKS = 21
BROKEN_PROJECT = """
[project]
name = "portico-broken"
version = "1.0.0"
[project.entry-points."portico.drivers"]
broken = "portico_broken:BrokenDriver"
[tool.setuptools]
py-modules = ["portico_broken"]
"""


def block(language: str, number: int = 0) -> str:
    """A code block of the page."""
    found: str = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[number]
    return found


def installed(project: Path, target: Path) -> None:
    """Build a wheel of a project and install just that; without the network, by the setuptools that is here."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = project / "wheels"
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, project], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", target, wheel], check=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's package and one beside it that does not load, both installed from their wheels."""
    folder = tmp_path_factory.mktemp("packages")
    sources = {
        "cat": (block("toml"), "portico_cat.py", block("python")),
        "broken": (BROKEN_PROJECT, "portico_broken.py", "raise RuntimeError('half a driver')\n"),
    }
    for name, (project, module, code) in sources.items():
        (folder / name).mkdir()
        (folder / name / "pyproject.toml").write_text(project)
        (folder / name / module).write_text(code)
        installed(folder / name, folder / "target")
    return folder / "target"


@pytest.fixture
async def daemon(tmp_path: Path, target: Path) -> AsyncIterator[Daemon]:
    """A daemon that finds the packages, with the page's agent."""
    config = write_config(tmp_path, table(tmp_path, agents={"tom": {"driver": "cat"}}))
    found = await Daemon(config, tmp_path, {"PYTHONPATH": str(target)}, forked=False).start()
    yield found
    if found.process is not None and found.process.returncode is None:
        await found.stop()


def test_the_page_has_all_of_it_in_less_than_60_lines() -> None:
    assert len(block("python").splitlines()) < 60
    assert 'driver = "cat"' in block("toml", 1)


async def test_it_runs_in_a_daemon_and_a_broken_one_beside_it_is_left_out(daemon: Daemon) -> None:
    async with daemon.client() as client:
        offered = {agent["name"]: agent for agent in (await client.get("/meta")).json()["agents"]}
        assert offered["tom"]["title"] == "Cat"
        made = await create(client, "tom", "hello")
        assert made["messages"] == [{"role": "assistant", "content": "hello"}]
        again = await say(client, made["sessionId"], "two\nlines, \u00fc and \U0001f600")
        assert again["messages"] == [{"role": "assistant", "content": "two\nlines, \u00fc and \U0001f600"}]
        events = await execute(client, "-task", "tom")
        assert [event["kind"] for event in events] == ["agent_token", "session_end"]
        drivers = {driver["driver"] for driver in (await client.get("/v1/drivers")).json()["drivers"]}
        assert "cat" in drivers and "broken" not in drivers
    await daemon.stop()
    left_out = "the driver 'broken' of portico_broken:BrokenDriver is left out: RuntimeError: half a driver"
    assert left_out in daemon.stderr.decode()


async def test_it_passes_the_conformance_check_by_the_pages_command(target: Path) -> None:
    # The page's command ends with the driver; the block has nothing else.
    python, *arguments = block("sh", 1).split()
    assert python == "python"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(target), "LANG": "C.UTF-8"}
    check = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=ROOT
    )
    said = (await asyncio.wait_for(check.communicate(), 120))[0].decode()
    assert check.returncode == 0, said
    lines = [line.split(maxsplit=1) for line in said.splitlines()]
    assert len(lines) == CHECKS and f"{CHECKS} checks" in PAGE
    skipped = {rest.partition(":")[0] for status, rest in lines if status == "skipped"}
    assert skipped == {"native session", "seeds"}


def test_the_pages_test_passes(target: Path, tmp_path: Path) -> None:
    (tmp_path / "test_cat.py").write_text(block("python", 1))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{target}{os.pathsep}{ROOT}", "LANG": "C.UTF-8"}
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(pytest_, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
