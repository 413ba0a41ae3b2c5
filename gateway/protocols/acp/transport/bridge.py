"""Client of a running daemon for `portico acp --connect`: carries messages between standard input and output and a WebSocket."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from gateway.errors import ConfigError
from gateway.protocols.acp.rpc import INTERNAL_ERROR, error_body
from gateway.protocols.acp.transport.messages import MAX_MESSAGE_BYTES, PARSE_ERROR, parse_message
from gateway.protocols.acp.transport.stdio import StandardLines

REFUSAL_TIMEOUT = 0.3
"""Seconds for the first request of a client that cannot be connected."""
DRAIN_TIMEOUT = 5.0
"""Seconds to wait for pending answers after standard input has ended."""


def endpoint(url: str, agent: str, slash_commands: str | None = None, *, terminal_login: bool = False) -> str:
    """Return the daemon's WebSocket URL for an agent. Raises ConfigError if `url` is not the address of a daemon.

    `slash_commands` is `on` or `off` if the user has chosen. With `terminal_login` the client, which has started this process on
    the machine of the daemon, gets the login methods that it can run in a terminal.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ConfigError(f"--connect {url!r} is not the address of a daemon; write it as http://127.0.0.1:7700")
    path = parts.path.rstrip("/")
    choices = {"slash_commands": slash_commands, "terminal_login": "on" if terminal_login else None}
    query = urlencode({name: value for name, value in choices.items() if value})
    query = f"?{query}" if query else ""
    return f"{schemes[parts.scheme]}://{parts.netloc}{path}/acp/{quote(agent)}{query}"


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
        await _refuse(lines, _explanation(error))
        raise ConfigError(f"the daemon refused the connection to {url}: {_reason(error)}") from None
    except (OSError, WebSocketException, TimeoutError) as error:
        await _refuse(lines, "the daemon does not answer; start it with `portico serve`")
        raise ConfigError(f"no daemon answers at {url}: {error}; start it with `portico serve`") from None


async def _refuse(lines: StandardLines, reason: str) -> None:
    """Answer the client's first request with an error, if it comes soon: clients send `initialize` at once."""
    await lines.open()
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(REFUSAL_TIMEOUT):
            async for line in lines.lines():
                with suppress(ValueError):
                    pending = _PendingRequests()
                    pending.add(parse_message(line))
                    return await pending.fail(lines, reason)


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
        await pending.fail(lines, "the daemon closed the connection before its answer; connect again")
        reason = f": {socket.close_reason} ({socket.close_code})" if socket.close_reason else ""
        raise ConfigError(f"the daemon closed the connection{reason}")


class _PendingRequests:
    """The client's requests without an answer."""

    def __init__(self) -> None:
        self._methods: dict[int | str, str] = {}
        self.empty = asyncio.Event()
        """Set while there is none but prompts, which have no time limit."""
        self.empty.set()

    def add(self, message: Any) -> None:
        if isinstance(message, dict) and isinstance(message.get("id"), int | str) and "method" in message:
            self._methods[message["id"]] = str(message["method"])[:100]
        self._update()

    def remove(self, message: Any) -> None:
        if isinstance(message, dict) and isinstance(message.get("id"), int | str) and "method" not in message:
            self._methods.pop(message["id"], None)
        self._update()

    async def fail(self, lines: StandardLines, reason: str) -> None:
        """Answer all with an error. Nothing is written to a client that is gone."""
        with suppress(OSError):
            for request_id, method in self._methods.items():
                error = error_body(INTERNAL_ERROR, f"{method}: {reason}")
                await lines.write({"jsonrpc": "2.0", "id": request_id, "error": error})

    def _update(self) -> None:
        (self.empty.clear if any(method != "session/prompt" for method in self._methods.values()) else self.empty.set)()


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


def _explanation(error: InvalidStatus) -> str:
    """Return why the daemon refuses the connection, without what is HTTP's."""
    if error.response.status_code == 401:
        return "the daemon does not accept this key; give its key with --key-file or PORTICO_API_KEY"
    try:
        reason = json.loads(error.response.body or b"")["error"]
    except (ValueError, KeyError, TypeError):
        reason = "see standard error"
    return f"the daemon refused the connection: {reason}"
