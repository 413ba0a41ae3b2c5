"""The examples of docs/protocols/aap-sessions-extensions.md, as they are on the page."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import KEY, RunningGateway

PAGE = Path(__file__).parents[4] / "docs" / "protocols" / "aap-sessions-extensions.md"
SCRIPT = """
set -eu -o pipefail
# A stream without an end is left after a moment; a refused request fails.
curl() { local code=0; command curl -fsS -w "\\n" --max-time 5 "$@" || code=$?; [ $code = 0 ] || [ $code = 28 ]; }
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_the_examples_work(portico: RunningGateway, tmp_path: Path) -> None:
    examples = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 9
    script = SCRIPT + "\necho; echo ----\n".join(examples).replace("http://127.0.0.1:7700", portico.url)
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "PORTICO_KEY": KEY},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, errors.decode()
    answers = output.decode().split("\n----\n")
    assert len(answers) == len(examples)
    documents: list[dict[str, Any]] = [json.loads(line) for answer in answers for line in answer.splitlines() if line[:1] == "{"]
    keys = {key for document in documents for key in document}
    assert keys >= {"stopReason", "sessions", "x-portico", "sessionId", "messages", "results", "events", "runs"}
    assert any("event: ready" in answer for answer in answers)
    assert any('data: {"kind":"turn_start"' in answer for answer in answers)
