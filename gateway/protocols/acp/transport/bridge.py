"""A thin client of a running daemon: what comes on standard input goes to its WebSocket, and the other way round."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from gateway.errors import ConfigError
from gateway.protocols.acp.transport.stdio import LONGEST_LINE, NOT_JSON, StandardLines, parsed

LAST_WORDS = 5.0
"""Seconds for what is still to be answered when standard input has ended."""


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
    open_requests = _OpenRequests()
    incoming = asyncio.create_task(_from_daemon(lines, socket, open_requests))
    outgoing = asyncio.create_task(_from_client(lines, socket, open_requests))
    await asyncio.wait((incoming, outgoing), return_when=asyncio.FIRST_COMPLETED)
    gone = incoming.done() and not outgoing.done()
    if not incoming.done():
        answered = asyncio.create_task(open_requests.none.wait())
        await asyncio.wait((incoming, answered), timeout=LAST_WORDS, return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
    for task in (incoming, outgoing):
        task.cancel()
    await asyncio.gather(incoming, outgoing, return_exceptions=True)
    if gone:
        why = f": {socket.close_reason} ({socket.close_code})" if socket.close_reason else ""
        raise ConfigError(f"the daemon closed the connection{why}")


class _OpenRequests:
    """The client's requests that are not answered yet, without prompts, which take as long as they take."""

    def __init__(self) -> None:
        self._ids: set[int | str] = set()
        self.none = asyncio.Event()
        self.none.set()

    def asked(self, message: Any) -> None:
        if isinstance(message, dict) and "method" in message and message["method"] != "session/prompt":
            self._ids |= _id(message)
        self._tell()

    def answered(self, message: Any) -> None:
        if isinstance(message, dict) and "method" not in message:
            self._ids -= _id(message)
        self._tell()

    def _tell(self) -> None:
        (self.none.clear if self._ids else self.none.set)()


def _id(message: dict[str, Any]) -> set[int | str]:
    found = message.get("id")
    return {found} if isinstance(found, int | str) else set()


async def _from_daemon(lines: StandardLines, socket: ClientConnection, open_requests: _OpenRequests) -> None:
    async for frame in socket:
        message = parsed(frame)
        await lines.write(message)
        open_requests.answered(message)


async def _from_client(lines: StandardLines, socket: ClientConnection, open_requests: _OpenRequests) -> None:
    async for line in lines.lines():
        try:
            open_requests.asked(parsed(line))
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
