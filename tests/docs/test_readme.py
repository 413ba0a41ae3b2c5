"""The curl commands on the documentation pages succeed as printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.daemon import KEY, RunningGateway

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/protocols/aap.md", "docs/protocols/execute.md")


def commands(page: str) -> list[str]:
    """Return the shell blocks of a page that send requests."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [block for block in blocks if "curl" in block]


@pytest.mark.parametrize("page", PAGES)
async def test_curl_commands_of_the_page_succeed(page: str, portico: RunningGateway) -> None:
    assert commands(page)
    await portico.client.put("/session", json={"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "first"}]})
    for block in commands(page):
        script = "set -e\n" + block.replace("http://127.0.0.1:7700", portico.url).replace("curl ", "curl --fail-with-body -sS ")
        env = {"PATH": "/usr/bin:/bin", "PORTICO_KEY": KEY}
        shell = await asyncio.create_subprocess_exec("bash", "-c", script, env=env, stdout=asyncio.subprocess.PIPE)
        printed, _ = await asyncio.wait_for(shell.communicate(), 60)
        assert shell.returncode == 0, f"{block}\n{printed.decode()}"
        assert printed, block
