"""The curl commands on the documentation pages succeed as printed."""

from __future__ import annotations

import asyncio
import re
import tomllib
from pathlib import Path

import pytest

from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway

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


async def test_ui_page_has_a_valid_configuration_and_the_texts_that_a_ui_displays(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text().partition("## Pointing a UI at it")[2].partition("\n## ")[0]
    [toml] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    server = tomllib.loads(toml)["server"]
    async with run_gateway(gateway_config(tmp_path, server=server)) as portico:
        for origin in server["origins"]:
            allowed = await portico.client.get("/aap/v3/meta", headers={"Origin": origin})
            assert allowed.headers["Access-Control-Allow-Origin"] == origin
        refused = await portico.client.get("/aap/v3/meta", headers={"Origin": "https://ui.example.org"})
        wrong_key = await portico.client.get("/aap/v3/meta", headers={"Authorization": "Bearer wrong"})
        no_key = await portico.client.get("/aap/v3/meta", headers={"Authorization": "Bearer"})
        del portico.client.headers["Authorization"]
        public = [(await portico.client.get(f"/aap/v3/{path}")).status_code for path in ("meta", "sessions")]
    assert refused.status_code == 403 and "web pages of the origin 'https://ui.example.org' are rejected" in refused.text
    for answer in (wrong_key, no_key):
        assert (answer.status_code, answer.text.partition(":")[2][:24]) == (401, '"this API key is unknown')
    assert public == [200, 401]
    for text in ("web pages of the origin '…' are rejected", '401: {"error":"this API key is unknown: …'):
        assert text in page
