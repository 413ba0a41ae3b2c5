"""`portico acp --connect`: a thin client of a daemon, which is a WebSocket server here."""

from __future__ import annotations

import asyncio
import http
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve

from gateway.errors import ConfigError
from gateway.gateway import Gateway
from gateway.protocols.acp.bridge import endpoint
from gateway.protocols.acp.connection import Connection
from gateway.security import HOUSEHOLDER
from tests.daemon import KEY, Running
from tests.gateway.protocols.acp.test_conformance import on_stdio


@asynccontextmanager
async def websocket_on(gateway: Gateway) -> AsyncIterator[Server]:
    """The gateway's agents over WebSockets at /acp/AGENT, for those who have the key."""

    async def talk(socket: ServerConnection) -> None:
        async def send(message: dict[str, Any]) -> None:
            await socket.send(json.dumps(message))

        assert socket.request is not None
        connection = Connection(gateway, socket.request.path.rpartition("/")[2], HOUSEHOLDER, send)
        async for frame in socket:
            await connection.receive(json.loads(frame))
        await connection.close()

    def check(socket: ServerConnection, request: Any) -> Any:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return socket.respond(http.HTTPStatus.UNAUTHORIZED, '{"error": "no API key"}')
        return None

    async with serve(talk, "127.0.0.1", 0, process_request=check, max_size=64 * 1024 * 1024) as server:
        yield server


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_session_over_a_daemon(portico: Running, tmp_path: Path) -> None:
    folder, key = tmp_path / "editor", tmp_path / "key"
    folder.mkdir()
    key.write_text(KEY + "\n")
    async with (
        websocket_on(portico.gateway) as server,
        on_stdio(folder, "echo", "--connect", url(server), "--key-file", str(key)) as (
            client,
            process,
        ),
    ):
        await client.initialize()
        session = await client.new()
        big = "x" * 3_000_000
        assert (await client.prompt(session, big))["stopReason"] == "end_turn"
        assert client.text(session) == big
        assert session in (await portico.client.get("/sessions")).json()["sessions"]
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    assert not (folder / "data" / "acp").exists()


async def test_what_goes_wrong_is_said(portico: Running, tmp_path: Path) -> None:
    async def said(*arguments: str) -> str:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        async with on_stdio(folder, "echo", *arguments, stderr=True) as (_, process):
            assert process.stderr is not None
            text = (await asyncio.wait_for(process.stderr.read(), 30)).decode()
            assert await process.wait() == 1
            return text

    key = tmp_path / "wrong-key"
    key.write_text("pk-not-this-one")
    async with websocket_on(portico.gateway) as server:
        refused = await said("--connect", url(server), "--key-file", str(key))
        assert "401" in refused
        assert "--key-file" in refused
        assert "pk-not-this-one" not in refused
        nobody = url(server)
    assert "no daemon answers" in await said("--connect", nobody)
    assert "--key-file" in await said("--connect", nobody, "--key-file", str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("http://127.0.0.1:7700", "ws://127.0.0.1:7700/acp/echo"),
        ("127.0.0.1:7700/", "ws://127.0.0.1:7700/acp/echo"),
        ("https://example.org/portico/", "wss://example.org/portico/acp/echo"),
    ],
)
def test_addresses(given: str, found: str) -> None:
    assert endpoint(given, "echo") == found


def test_no_address() -> None:
    with pytest.raises(ConfigError, match="no address of a daemon"):
        endpoint("ftp://x", "echo")
