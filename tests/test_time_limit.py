"""A test that hangs fails and prints what it waits for; the tests after it run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HANGS = """
import asyncio
import pytest

async def wait_forever():
    await asyncio.Event().wait()

@pytest.fixture
async def hanging_teardown():
    yield
    await asyncio.Event().wait()

async def test_hangs():
    await asyncio.create_task(wait_forever(), name="reader")

async def test_fails_and_then_hangs(hanging_teardown):
    assert False

async def test_after_hang():
    pass
"""


async def test_hanging_tests_fail_and_print_their_tasks(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    root = Path(__file__).parents[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-p", "tests.support.time_limit", "-p", "no:cacheprovider",
        "-c", str(root / "pyproject.toml"), "--rootdir", str(tmp_path), "--timeout", "1", str(tmp_path),
        cwd=root, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    output = out.decode()
    assert "2 failed, 1 passed, 1 error" in output, output
    assert "~~~ reader waits ~~~" in output
    assert "in wait_forever\n" in output
    assert "ERROR at teardown of test_fails_and_then_hangs" in output
