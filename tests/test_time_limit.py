"""A test that hangs fails and says what it waits for; the tests after it run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HANGS = """
import asyncio
import pytest

async def the_answer():
    await asyncio.Event().wait()

@pytest.fixture
async def never_over():
    yield
    await asyncio.Event().wait()

async def test_hangs():
    await asyncio.create_task(the_answer(), name="asking")

async def test_fails_and_then_hangs(never_over):
    assert False

async def test_goes_on():
    pass
"""


async def test_a_hang_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    root = Path(__file__).parents[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-p", "tests.time_limit", "-p", "no:cacheprovider", "-c", str(root / "pyproject.toml"),
        "--rootdir", str(tmp_path), "--timeout", "1", str(tmp_path),
        cwd=root, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    received_text = out.decode()
    assert "2 failed, 1 passed, 1 error" in received_text, received_text
    assert "~~~ asking waits ~~~" in received_text
    assert "in the_answer\n" in received_text
    assert "ERROR at teardown of test_fails_and_then_hangs" in received_text
