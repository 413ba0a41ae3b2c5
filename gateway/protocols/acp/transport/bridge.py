"""Client of a running daemon for `portico acp --connect`: carries messages between standard input and output and a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from gateway.errors import ConfigError
from gateway.protocols.acp.transport.messages import MAX_MESSAGE_BYTES, PARSE_ERROR, parse_message
from gateway.protocols.acp.transport.stdio import StandardLines

DRAIN_TIMEOUT = 5.0
"""Seconds to wait for pending answers after standard input has ended."""


def endpoint(url: str, agent: str) -> str:
    """Return the daemon's WebSocket URL for an agent. Raises ConfigError if `url` is not the address of a daemon."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ConfigError(f"--connect {url!r} is not the address of a daemon; write it as http://127.0.0.1:7700")
    path = parts.path.rstrip("/")
    return f"{schemes[parts.scheme]}://{parts.netloc}{path}/acp/{quote(agent)}"


async def bridge(url: str, key: str | None) -> None:
    """Carry messages until standard input ends.

    `url` is that of `endpoint`, `key` the API key, or None for a daemon without keys.
    Raises ConfigError if the daemon does not answer, refuses the connection, or closes it.
    """
    lines = StandardLines()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        # No proxy: the daemon is on this machine, or at an address that the user has given.
        async with connect(url, additional_headers=headers, max_size=MAX_MESSAGE_BYTES, proxy=None) as socket:
            await lines.open()
            await _carry(lines, socket)
    except InvalidStatus as error:
        raise ConfigError(f"the daemon refused the connection to {url}: {_reason(error)}") from None
    except (OSError, WebSocketException, TimeoutError) as error:
        raise ConfigError(f"no daemon answers at {url}: {error}; start it with `portico serve`") from None


async def _carry(lines: StandardLines, socket: ClientConnection) -> None:
    pending = _PendingRequests()
    incoming = asyncio.create_task(_from_daemon(lines, socket, pending))
    outgoing = asyncio.create_task(_from_client(lines, socket, pending))
    await asyncio.wait((incoming, outgoing), return_when=asyncio.FIRST_COMPLETED)
    closed_by_daemon = incoming.done() and not outgoing.done()
    if not incoming.done():
        answered = asyncio.create_task(pending.empty.wait())
        await asyncio.wait((incoming, answered), timeout=DRAIN_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
    for task in (incoming, outgoing):
        task.cancel()
    await asyncio.gather(incoming, outgoing, return_exceptions=True)
    if closed_by_daemon:
        reason = f": {socket.close_reason} ({socket.close_code})" if socket.close_reason else ""
        raise ConfigError(f"the daemon closed the connection{reason}")


class _PendingRequests:
    """The client's requests without an answer. Prompts are left out, because they have no time limit."""

    def __init__(self) -> None:
        self._ids: set[int | str] = set()
        self.empty = asyncio.Event()
        self.empty.set()

    def add(self, message: Any) -> None:
        if isinstance(message, dict) and "method" in message and message["method"] != "session/prompt":
            self._ids |= _id(message)
        self._update()

    def remove(self, message: Any) -> None:
        if isinstance(message, dict) and "method" not in message:
            self._ids -= _id(message)
        self._update()

    def _update(self) -> None:
        (self.empty.clear if self._ids else self.empty.set)()


def _id(message: dict[str, Any]) -> set[int | str]:
    request_id = message.get("id")
    return {request_id} if isinstance(request_id, int | str) else set()


async def _from_daemon(lines: StandardLines, socket: ClientConnection, pending: _PendingRequests) -> None:
    async for frame in socket:
        message = parse_message(frame)
        await lines.write(message)
        pending.remove(message)


async def _from_client(lines: StandardLines, socket: ClientConnection, pending: _PendingRequests) -> None:
    async for line in lines.lines():
        try:
            pending.add(parse_message(line))
        except ValueError:
            await lines.write(PARSE_ERROR)
            continue
        try:
            await socket.send(line.decode().strip())
        except ConnectionClosed:
            return


def _reason(error: InvalidStatus) -> str:
    body = error.response.body.decode("utf-8", "replace").strip() if error.response.body else ""
    hint = "; give its key with --key-file or PORTICO_API_KEY" if error.response.status_code == 401 else ""
    return f"{error.response.status_code} {body}{hint}".strip()
