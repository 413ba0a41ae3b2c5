"""`portico run` with the real claude in a terminal: a turn, Ctrl-C, and an error."""

from __future__ import annotations

import asyncio
import signal
import sys

from tests.conftest import write_config
from tests.real.conftest import Home
from tests.real.models import Model, message_texts
from tests.real.processes import TIMEOUT_SECONDS


async def test_ctrl_c_in_the_terminal_exits_with_130(home: Home) -> None:
    run = await _portico_run(home, "[[slowtext]] hello")
    assert run.stdout is not None
    assert (await asyncio.wait_for(run.stdout.read(5), TIMEOUT_SECONDS)).startswith(b"word")
    run.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(run.communicate(), TIMEOUT_SECONDS)
    assert run.returncode == 130, errors
    assert b"Traceback" not in errors


async def test_a_turn_in_the_terminal(home: Home, model: Model) -> None:
    run = await _portico_run(home, "--", "-x [[plain]]")
    answer, errors = await asyncio.wait_for(run.communicate(), TIMEOUT_SECONDS)
    assert (run.returncode, answer) == (0, b"Hello from the model, this is plain text.\n"), errors
    assert message_texts(model.last_request(), "user") == ["-x [[plain]]"]


async def test_a_failed_turn_in_the_terminal_prints_its_error(home: Home) -> None:
    home.env["CLAUDE_CODE_MAX_RETRIES"] = "0"
    run = await _portico_run(home, "[[e401]]")
    answer, errors = await asyncio.wait_for(run.communicate(), TIMEOUT_SECONDS)
    assert (run.returncode, answer) == (1, b"")
    assert "Invalid API key" in errors.decode()


async def _portico_run(home: Home, *prompt: str) -> asyncio.subprocess.Process:
    config = write_config(home.base, home.config())
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, "-m", "gateway", "run", "--config", str(config), "claude", *prompt]
    return await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=home.daemon_env()
    )
