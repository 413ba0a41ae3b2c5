"""The example clients of the official Python package, their files unchanged: only the address and the key are the daemon's."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.daemon import KEY, Daemon

EXAMPLES = Path(__file__).with_name("examples")
# The examples connect to localhost:8000/acp, without a key.
RUN = """
import runpy, sys
import acp.http, acp.ws
file, place, key = sys.argv[1:]
scheme, rest = place.split("://")
def there(connect):
    def connected(url):
        return connect(url.split("://")[0] + "://" + rest, headers={"Authorization": "Bearer " + key})
    return connected
acp.http.create_http_stream = there(acp.http.create_http_stream)
acp.ws.create_websocket_stream = there(acp.ws.create_websocket_stream)
runpy.run_path(file, run_name="__main__")
"""


@pytest.mark.parametrize(("file", "words"), [("http_client.py", "hello over http"), ("ws_client.py", "hello over websocket")])
async def test_an_example_client(daemon: Daemon, file: str, words: str) -> None:
    await daemon.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, str(EXAMPLES / file), f"{daemon.url}/acp/echo", KEY,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    said = out.decode().splitlines()
    assert process.returncode == 0, out.decode()
    assert said[0] == "initialized (protocol v1)"
    assert said[1].startswith("session: sess_")
    assert said[2:] == [f"<< {words}", "stop reason: end_turn"]
