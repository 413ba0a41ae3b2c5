"""ACP over a Unix socket in the data directory, for processes of the same user: `portico acp` connects its editor by it.

The server proves to a client that it knows the token of the record file, which only the user can read, and the client to the
server (gateway/security/socket_proof.py). The client's proof is in a line with the name of an agent. It gets a line with `error`
or without it. Then both sides send ACP messages as on standard input and output. A process in an agent's sandbox cannot read the
token, and is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json, to_json

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.process_tree import is_confined
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.app import Gateway
from gateway.errors import ConfigError, GatewayError
from gateway.private_files import private_file
from gateway.protocols.acp.connection import Connection
from gateway.protocols.acp.initialization import acp_command
from gateway.protocols.acp.transport.messages import MAX_MESSAGE_BYTES, PARSE_ERROR, parse_message
from gateway.protocols.acp.transport.stdio import read_lines
from gateway.security.authentication import LOCAL_ADMINISTRATOR
from gateway.security.socket_peer import connect, is_same_user, peer_process, short_address
from gateway.security.socket_proof import RECORD, is_nonce, is_proof, new_nonce, proof, prove

log = logging.getLogger(__name__)

SOCKET = "acp.sock"
MAX_CLIENTS = 256
HELLO_TIMEOUT = 10.0
"""Seconds for the first line of a client."""
FINISH_TIMEOUT = 5.0
"""Seconds for responses that are pending when a client sends no more."""
END_TIMEOUT = 10.0
"""Seconds for a daemon to end, after it has agreed to."""
MAX_ANSWER = 4096
"""Bytes of its answer."""
RELEASE = "release"
"""The key of a first line that asks the daemon to end, because another one is to serve the data directory."""


class LocalSocket:
    """The clients of this user on this machine. They have the rights of the administrator.

    `release` is called for a daemon that starts: it returns why this one does not end for it, or None. `ends_for` is called with
    the first line of a client, and with whether it is the only client: it returns whether this daemon ends, so that the client
    starts another one.
    """

    def __init__(
        self,
        gateway: Gateway,
        data_dir: Path,
        *,
        release: Callable[[], str | None] = lambda: "it does not end",
        ends_for: Callable[[Mapping[str, Any], bool], bool] = lambda *_: False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._gateway, self._data_dir, self._clock = gateway, data_dir, clock
        self._release, self._ends_for = release, ends_for
        self._server: asyncio.Server | None = None
        self._token = secrets.token_urlsafe(32)
        self._path = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.keep_last = False
        """Whether the connection of the last client stays open, and ends with this process."""
        self._kept: asyncio.StreamWriter | None = None
        self._successor: socket.socket | None = None
        """The connection of the daemon for which this one ends."""

    async def open(self) -> None:
        """Accept connections. Raises OSError if there can be no socket."""
        self._path = str(self._data_dir / SOCKET)
        # First, so that a client of the new socket has not read the token of a process that was killed.
        self._write_record({"path": self._path, "token": self._token, "pid": os.getpid()})
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        # The mode of a socket is that of the umask, which is one of all threads: what they create meanwhile would have it too.
        own = socket.socket(socket.AF_UNIX)
        try:
            with short_address(self._path) as address:
                own.bind(address)
            # Nobody can connect before it listens.
            os.chmod(self._path, 0o600)
            self._server = await asyncio.start_unix_server(self._accept, sock=own, limit=MAX_MESSAGE_BYTES)
        except BaseException:
            own.close()
            raise

    def _write_record(self, content: dict[str, Any]) -> None:
        record = self._data_dir / RECORD
        temporary = record.with_suffix(".new")
        # Not through a link in its place.
        temporary.unlink(missing_ok=True)
        with open(private_file(temporary, os.O_WRONLY | os.O_EXCL), "w") as opened:
            json.dump(content, opened)
        temporary.replace(record)

    @property
    def connected(self) -> bool:
        """Whether there is a client."""
        return bool(self._tasks)

    async def none_left(self) -> None:
        """Wait until there is no client."""
        while self._tasks:
            self._changed.clear()
            await self._changed.wait()

    async def some(self) -> None:
        """Wait until there is a client."""
        while not self._tasks:
            self._changed.clear()
            await self._changed.wait()

    def stop_accepting(self) -> None:
        """Accept no client any more, and remove the socket and its record."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for file in (self._data_dir / RECORD, Path(self._path)):
            with contextlib.suppress(OSError):
                file.unlink()

    async def close(self) -> None:
        """Stop accepting, and close all connections."""
        self.stop_accepting()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hand_over(self, lock: IO[str]) -> None:
        """Give the lock of the data directory to the daemon for which this one ends, if there is one.

        The directory is locked without a gap, so that no editor starts a daemon in between.
        """
        if self._successor is not None:
            with self._successor, contextlib.suppress(OSError):
                socket.send_fds(self._successor, [b"{}\n"], [lock.fileno()])

    # -- one client --------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        if self._server is None or len(self._tasks) >= MAX_CLIENTS or not is_same_user(connection):
            writer.close()
        elif (pid := peer_process(connection)) is not None and is_confined(pid):
            log.warning("a process of an agent in a sandbox was refused as a local client")
            writer.close()
        else:
            writer.transport.set_write_buffer_limits(high=0)
            task = asyncio.create_task(self._serve(reader, writer))
            self._tasks.add(task)
            self._changed.set()
            task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a local client failed", exc_info=error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = False
        try:
            hello = await self._proven(reader, writer)
            if hello is None:
                return
            if RELEASE in hello:
                return await self._end_for(writer)
            if self._ends_for(hello, len(self._tasks) == 1):
                return
            try:
                connection = self._connection(hello, writer)
            except GatewayError as error:
                return await _write(writer, [{"error": str(error)}])
            accepted = True
            await _write(writer, [{}])
            await self._serve_client(hello, connection, reader, writer)
        except ConnectionError:
            pass
        finally:
            if accepted and self.keep_last and len(self._tasks) == 1:
                self._kept = writer
            else:
                writer.close()

    async def _end_for(self, writer: asyncio.StreamWriter) -> None:
        """End for another daemon, which gets the lock by `hand_over`, or answer why not."""
        if (problem := self._release()) is not None:
            return await _write(writer, [{"error": problem}])
        # The writer's own socket is closed before the end.
        self._successor = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))

    async def _line(self, reader: asyncio.StreamReader) -> dict[str, Any] | None:
        """Return the next line of a client; None if it sends no object in time."""
        try:
            async with self._clock.timeout(HELLO_TIMEOUT):
                line = from_json(await reader.readline())
        except (TimeoutError, ValueError):
            return None
        return line if isinstance(line, dict) else None

    async def _proven(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
        """Return the line of a client that has proven that it knows the token, None for another client."""
        begun = await self._line(reader)
        client = None if begun is None else begun.get("nonce")
        if is_nonce(client):
            server = new_nonce()
            await _write(writer, [{"nonce": server, "proof": proof(self._token, "server", client, server)}])
            hello = await self._line(reader)
            if hello is not None and is_proof(hello.get("proof"), proof(self._token, "client", client, server)):
                return hello
        log.warning("a local client was refused: it does not know the token of %s", self._data_dir / RECORD)
        return None

    def _connection(self, hello: dict[str, Any], writer: asyncio.StreamWriter) -> Connection:
        """Return the connection that a first line asks for. Raises BadRequest for an unknown agent."""
        name, slash_commands, last_id = hello.get("agent"), hello.get("slash_commands"), hello.get("last_request_id")

        async def write(message: dict[str, Any]) -> None:
            await _write(writer, (message,))

        async def write_all(messages: Sequence[dict[str, Any]]) -> None:
            await _write(writer, messages)

        async def disconnect() -> None:
            writer.close()

        connection = Connection(
            self._gateway,
            name if isinstance(name, str) else "",
            LOCAL_ADMINISTRATOR,
            write,
            write_all,
            slash_commands=slash_commands if isinstance(slash_commands, str) else None,
            login_command=acp_command(str(name), self._gateway.settings),
            last_request_id=last_id if isinstance(last_id, int) else 0,
        )
        connection.disconnect = disconnect
        return connection

    async def _serve_client(
        self, hello: dict[str, Any], connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        agent = self._gateway.agents.get(str(hello["agent"]))
        folder = None if agent.has_own_cwd else hello.get("folder")
        refreshing = asyncio.create_task(self._refresh(agent))
        try:
            async for line in read_lines(reader):
                try:
                    message = parse_message(line)
                except ValueError:
                    await _write(writer, [PARSE_ERROR])
                else:
                    await connection.receive(_in_folder(message, folder))
            await connection.drain(FINISH_TIMEOUT)
        finally:
            refreshing.cancel()
            await connection.close()

    async def _refresh(self, agent: ConfiguredAgent) -> None:
        """Probe the agent's program, if that was not done recently."""
        with contextlib.suppress(Exception):
            await self._gateway.discovery.refresh(agent)


def take_over(data_dir: Path) -> int | None:
    """Ask the daemon that serves a data directory to editors only to end, and wait until it has.

    Returns the descriptor of the directory's lock; None if there is no such daemon, or if it has failed to end in order.
    Raises ConfigError with its reason if it stays.
    """
    try:
        record = from_json((data_dir / RECORD).read_bytes())
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(HELLO_TIMEOUT)
            connect(connection, record["path"])
            if not is_same_user(connection) or (proven := prove(connection, record["token"])) is None:
                return None
            connection.sendall(to_json({"proof": proven, RELEASE: True}) + b"\n")
            connection.settimeout(END_TIMEOUT)
            answer, descriptors, _, _ = socket.recv_fds(connection, MAX_ANSWER, 1)
            if descriptors:
                return descriptors[0]
            problem = from_json(answer)["error"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    raise ConfigError(f"another portico runs with the data directory {data_dir}: {problem}")


def _in_folder(message: Any, folder: object) -> Any:
    """Return the message, with the client's folder where a new session is to work in the folder of its agent."""
    if folder and isinstance(message, dict) and message.get("method") in ("session/new", "session/fork"):
        params = message.get("params")
        if isinstance(params, dict) and params.get("cwd") in ("", "."):
            return {**message, "params": {**params, "cwd": folder}}
    return message


async def _write(writer: asyncio.StreamWriter, messages: Sequence[dict[str, Any]]) -> None:
    """Write messages at once. Waits while the client does not read. Raises ConnectionError if it is gone."""
    writer.write(b"".join([to_json(message) + b"\n" for message in messages]))
    await writer.drain()
