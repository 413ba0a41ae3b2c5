"""The proxies of docs/public-address.md, each with the settings of the page: events come at once, and other requests work."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.gateway.protocols.acp.raw_connections import BEARER, INITIALIZE, asked, rpc
from tests.support.daemon import NO_CERTIFICATES, RunningGateway, gateway_config, run_gateway
from tests.support.debian import IN_CI
from tests.support.requests import session_body
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "public-address.md"
NAME = "portico.example.org"
WriteScenario = Callable[..., str]


def _program(name: str, folder: Path) -> str:
    """Return the path of a program. In CI its Debian package is unpacked if it is missing; otherwise the test is skipped."""
    found = shutil.which(name)
    if found is None and IN_CI:
        subprocess.run(["apt-get", "-qq", "update"], check=False)
        subprocess.run(["apt-get", "-qq", "download", name], cwd=folder, check=True)
        subprocess.run(["dpkg", "-x", *map(str, folder.glob("*.deb")), str(folder)], check=True)
        found = next(str(path) for path in folder.glob(f"usr/*bin/{name}"))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _settings(language: str, *changes: tuple[str, str]) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text)
        assert count == 1, pattern
    return text


def _caddy(folder: Path, port: int, upstream: str) -> list[str]:
    changes = ((NAME, f"http://{NAME}:{port}"), ("127.0.0.1:7700", upstream), (r"\A{\n", "{\n    admin off\n"))
    (folder / "Caddyfile").write_text(_settings("caddyfile", *changes))
    return [_program("caddy", folder), "run", "--config", str(folder / "Caddyfile")]


def _nginx(folder: Path, port: int, upstream: str) -> list[str]:
    changes = (
        ("listen 443 ssl", f"listen 127.0.0.1:{port}"),
        (r"    ssl_certificate .*\n", ""),
        (r"    ssl_certificate_key .*\n", ""),
        ("127.0.0.1:7700", upstream),
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    text = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(f"{text}http {{\naccess_log off;\n{places}{_settings('nginx', *changes)}}}\n")
    return [_program("nginx", folder), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]


@asynccontextmanager
async def _proxy(name: str, folder: Path, upstream: str) -> AsyncIterator[str]:
    """Run a proxy before a gateway; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    command = {"caddy": _caddy, "nginx": _nginx}[name](folder, port, upstream)
    environ = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=nothing, stderr=pipe)

    async def listens() -> bool:
        assert process.returncode is None, (await process.communicate())[1]
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        await wait_until(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def _behind(name: str, tmp_path: Path) -> AsyncIterator[tuple[RunningGateway, str]]:
    server, folder = {"hosts": [NAME], "trusted_proxies": ["127.0.0.1"]}, tmp_path / name
    folder.mkdir()
    async with (
        run_gateway(gateway_config(tmp_path, server=server)) as portico,
        _proxy(name, folder, urlsplit(portico.url).netloc) as url,
    ):
        yield portico, url


@pytest.mark.parametrize("name", ["caddy", "nginx"])
async def test_events_come_at_once(tmp_path: Path, write_scenario: WriteScenario, name: str) -> None:
    scenario = write_scenario([{"text": "begun"}, {"delay": 1.0}, {"text": ", done"}])
    async with _behind(name, tmp_path) as (_, url), httpx.AsyncClient(timeout=60, verify=NO_CERTIFICATES) as client:
        body = session_body("script", "go", options={"scenario": scenario}, stream="delta")
        headers = {**BEARER, "Host": NAME}
        at = dict[str, float]()
        async with client.stream("PUT", f"{url}/session", json=body, headers=headers) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                for text in ("begun", ", done"):
                    if text in line:
                        at.setdefault(text, time.monotonic())
        assert at[", done"] - at["begun"] > 0.5
        assert (await client.get(f"{url}/meta", headers={"Host": "other.example.org"})).text.find("portico") < 0


@pytest.mark.parametrize("name", ["caddy", "nginx"])
async def test_pages_of_the_console_are_accepted(tmp_path: Path, name: str) -> None:
    async with _behind(name, tmp_path) as (_, url), httpx.AsyncClient(verify=NO_CERTIFICATES) as client:
        host = f"{NAME}:{urlsplit(url).port}"
        response = await client.get(f"{url}/meta", headers={"Host": host, "Origin": f"http://{host}"})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", ["caddy", "nginx"])
async def test_acp_over_websocket(tmp_path: Path, name: str) -> None:
    async with _behind(name, tmp_path) as (_, url):
        port = urlsplit(url).port
        options = {"host": "127.0.0.1", "port": port, "additional_headers": BEARER, "proxy": None}
        async with connect(f"ws://{NAME}:{port}/acp/echo", **options) as client:
            await asked(client, INITIALIZE)
            session = (await asked(client, rpc("session/new", {"cwd": ".", "mcpServers": []})))["result"]["sessionId"]
            params = {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]}
            async with asyncio.timeout(60):
                assert (await asked(client, rpc("session/prompt", params, 2)))["result"]["stopReason"] == "end_turn"
