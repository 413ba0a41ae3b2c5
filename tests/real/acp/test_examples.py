"""The unmodified example clients of the official packages over the network, with the address of the daemon."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.conftest import write_config
from tests.real.acp.programs import PACKAGES, installed, node, run_program
from tests.support.daemon import KEY, Daemon, gateway_config

EXAMPLES = Path(__file__).with_name("examples")
# The examples connect to localhost:8000/acp, without a key.
RUN = """
import runpy, sys
import acp.http, acp.ws
file, address, key = sys.argv[1:]
scheme, rest = address.split("://")
def with_address(connect):
    def connected(url):
        return connect(url.split("://")[0] + "://" + rest, headers={"Authorization": "Bearer " + key})
    return connected
acp.http.create_http_stream = with_address(acp.http.create_http_stream)
acp.ws.create_websocket_stream = with_address(acp.ws.create_websocket_stream)
runpy.run_path(file, run_name="__main__")
"""


@pytest.mark.parametrize(("file", "words"), [("http_client.py", "hello over http"), ("ws_client.py", "hello over websocket")])
async def test_a_python_client(daemon: Daemon, file: str, words: str) -> None:
    await daemon.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, str(EXAMPLES / file), f"{daemon.url}/acp/echo", KEY,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    lines = out.decode().splitlines()
    assert process.returncode == 0, out.decode()
    assert lines[0] == "initialized (protocol v1)"
    assert lines[1].startswith("session: sess_")
    assert lines[2:] == [f"<< {words}", "stop reason: end_turn"]


@pytest.mark.parametrize(
    ("file", "variable", "words"),
    [
        ("http-client.js", "ACP_HTTP_URL", "Hello over Streamable HTTP"),
        ("ws-client.js", "ACP_WS_URL", "Hello over WebSocket"),
    ],
)
async def test_a_typescript_client(tmp_path: Path, file: str, variable: str, words: str) -> None:
    """The examples of 1.9.0, the last release that has them. They send their own key."""
    client = installed(PACKAGES / "acp-sdk-1" / "dist" / "examples" / file)
    config = gateway_config(tmp_path, agents={"echo": {"driver": "echo", "cwd": str(tmp_path)}})
    daemon = Daemon(write_config(tmp_path, {**config, "auth": {"keys": [KEY, "example-token"]}}), tmp_path)
    await daemon.start()
    try:
        url = daemon.url if "http" in file else daemon.url.replace("http", "ws", 1)
        out = await run_program(node(), client, folder=tmp_path, env={variable: f"{url}/acp/echo"})
        async with daemon.client() as portico:
            [session] = (await portico.get("/sessions")).json()["sessions"]
    finally:
        await daemon.stop()
    assert words in out
    assert "\nDone: end_turn\n" in out
    assert out.rstrip().endswith(f"Saved session {session}; loadSession=true")
