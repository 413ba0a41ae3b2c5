"""A thin client of a running daemon: what comes on standard input goes to its WebSocket, and the other way round."""

from __future__ import annotations

import asyncio
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from gateway.errors import ConfigError
from gateway.protocols.acp.lines import LONGEST_LINE, NOT_JSON, StandardLines, parsed


def endpoint(url: str, agent: str) -> str:
    """The daemon's address for that agent. Raises ConfigError for what is no address of a daemon."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ConfigError(f"--connect {url!r} is no address of a daemon; write it as http://127.0.0.1:7700")
    path = parts.path.rstrip("/")
    return f"{schemes[parts.scheme]}://{parts.netloc}{path}/acp/{quote(agent)}"


async def bridge(url: str, key: str | None) -> None:
    """Carry messages until standard input ends. Raises ConfigError where the daemon does not answer, or goes."""
    lines = StandardLines()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        # No proxy: the daemon is on this machine, or an address that the user has named.
        async with connect(url, additional_headers=headers, max_size=LONGEST_LINE, proxy=None) as socket:
            await lines.open()
            await _carry(lines, socket)
    except InvalidStatus as error:
        raise ConfigError(f"the daemon refused the connection to {url}: {_reason(error)}") from None
    except (OSError, WebSocketException, TimeoutError) as error:
        raise ConfigError(f"no daemon answers at {url}: {error}; start it with `portico serve`") from None


async def _carry(lines: StandardLines, socket: ClientConnection) -> None:
    incoming = asyncio.create_task(_from_daemon(lines, socket))
    outgoing = asyncio.create_task(_from_client(lines, socket))
    await asyncio.wait((incoming, outgoing), return_when=asyncio.FIRST_COMPLETED)
    gone = incoming.done() and not outgoing.done()
    for task in (incoming, outgoing):
        task.cancel()
    await asyncio.gather(incoming, outgoing, return_exceptions=True)
    if gone:
        why = f": {socket.close_reason} ({socket.close_code})" if socket.close_reason else ""
        raise ConfigError(f"the daemon closed the connection{why}")


async def _from_daemon(lines: StandardLines, socket: ClientConnection) -> None:
    async for frame in socket:
        await lines.write(parsed(frame))


async def _from_client(lines: StandardLines, socket: ClientConnection) -> None:
    async for line in lines.lines():
        try:
            parsed(line)
        except ValueError:
            await lines.write(NOT_JSON)
            continue
        try:
            await socket.send(line.decode().strip())
        except ConnectionClosed:
            return


def _reason(error: InvalidStatus) -> str:
    said = error.response.body.decode("utf-8", "replace").strip() if error.response.body else ""
    hint = "; give its key with --key-file or PORTICO_API_KEY" if error.response.status_code == 401 else ""
    return f"{error.response.status_code} {said}{hint}".strip()
