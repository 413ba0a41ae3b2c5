"""The examples of docs/protocols/aap-sessions-extensions.md, as they are on the page."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.daemon import KEY, RunningGateway

PAGE = Path(__file__).parents[4] / "docs" / "protocols" / "aap-sessions-extensions.md"
SCRIPT = """
set -eu -o pipefail
# A stream without an end is left by the test, with the status of SIGTERM; a refused request fails.
curl() { local code=0; command curl -fsS -w "\\n" "$@" || code=$?; [ $code = 0 ] || [ $code = 143 ]; }
"""
LAST = (b"event: ready", b'data: {"kind":"session_end"')
"""How the lines begin after which the streams without an end have sent everything."""


async def read(process: asyncio.subprocess.Process) -> str:
    """Read the output of the examples, and leave the streams without an end after their last lines."""
    output = b""
    assert process.stdout is not None
    async for line in process.stdout:
        output += line
        if line.startswith(LAST):
            [curl] = [child for child in psutil.Process(process.pid).children() if child.name() == "curl"]
            curl.terminate()
    return output.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_the_examples_work(portico: RunningGateway, tmp_path: Path) -> None:
    examples = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 9
    script = SCRIPT + "\necho; echo ----\n".join(examples).replace("http://127.0.0.1:7700", portico.url)
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "PORTICO_KEY": KEY},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    async with asyncio.timeout(120):
        output, errors = await asyncio.gather(read(process), process.stderr.read())
        assert await process.wait() == 0, errors.decode()
    answers = output.split("\n----\n")
    assert len(answers) == len(examples)
    documents: list[dict[str, Any]] = [json.loads(line) for answer in answers for line in answer.splitlines() if line[:1] == "{"]
    keys = {key for document in documents for key in document}
    assert keys >= {"stopReason", "sessions", "x-portico", "sessionId", "messages", "results", "events", "runs"}
    assert any("event: ready" in answer for answer in answers)
    assert any('data: {"kind":"turn_start"' in answer for answer in answers)
