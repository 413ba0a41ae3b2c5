"""The process that serves a data directory to the editors of its user: each is a `portico acp`, connected by a Unix socket."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivers.runtime.subreaper import adopted_orphans
from gateway import __version__
from gateway.agents.configured_agents import Agents
from gateway.agents.discovery import Discovery
from gateway.cli.main import starting
from gateway.cli.shared_gateway import RESERVED, STARTED_WITH, settings_digest
from gateway.config import Settings
from gateway.errors import ConfigError, GatewayError
from gateway.observability.logs import set_up_logging
from gateway.private_files import private_data_directory, private_file
from gateway.protocols.acp.transport.local_socket import LocalSocket
from gateway.security.redaction import Redactor
from gateway.server.end_signals import end_signals

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.sessions.session import Session

log = logging.getLogger(__name__)

FIRST_ANSWER_TIMEOUT = 0.1
"""Seconds after which the gateway is opened although no message was answered. Clients send `initialize` at once."""
LOG_FILE = "acp.log"
"""The log, in the data directory."""
FINISH_TIMEOUT = 5.0
"""Seconds for the errors of requests that wait for a gateway that cannot be opened."""


def checked_agents(settings: Settings, name: str) -> Agents:
    """Return the agents, with sessions in any directory. Raises ConfigError for an unknown agent or invalid settings."""
    agents = Agents(settings, any_directory=True)
    try:
        agents.get(name)
    except GatewayError as error:
        raise ConfigError(str(error)) from None
    return agents


def serve_editors(settings: Settings, agents: Agents, first: socket.socket) -> None:
    """Serve the client behind a connected socket and those that connect, until there has been none for `server.linger` seconds,
    or SIGINT, SIGTERM or SIGHUP.

    The caller has locked the data directory. Raises ConfigError if the store cannot be used.
    """
    redactor = Redactor()
    server, file = settings.server, settings.data_dir / LOG_FILE
    standard_error = set_up_logging(server.log_level, server.log_format, redactor, file)
    for change in private_data_directory(settings.data_dir):
        log.warning("%s", change)
    asyncio.run(_serve(_StartingGateway(settings, agents, redactor), first, standard_error))


class _StartingGateway:
    """The gateway, opened while the client is served: the imports and the start of the store take longer than all before it."""

    def __init__(self, settings: Settings, agents: Agents, redactor: Redactor) -> None:
        self.agents, self.redactor = agents, redactor
        # The programs of agents that no editor uses are not started.
        self.discovery = Discovery(agents, settings.data_dir, redactor, probes_at_start=False)
        for agent in agents:
            redactor.register(agent.secrets)
        self.settings = settings
        self._start: asyncio.Task[Gateway] | None = None

    async def opened(self) -> Gateway:
        """Wait until the gateway is open, and open it if that has not begun. Raises ConfigError if it cannot be opened."""
        if self._start is None:
            self._start = asyncio.create_task(self._open())
        return await asyncio.shield(self._start)

    async def _open(self) -> Gateway:
        with starting():
            # In a thread, so that what is received meanwhile is read, and `initialize` answered.
            module = await asyncio.to_thread(importlib.import_module, "gateway.app")
            gateway: Gateway = module.Gateway(self.settings, (), self.redactor, self.agents, self.discovery)
            await gateway.open()
            return gateway

    @property
    def runs_under_way(self) -> int:
        """The number of sessions with a run under way, those included whose agent waits for its client."""
        return sum(session.busy or (session.state == "waiting" and session.live is not None) for session in self._sessions)

    @property
    def runs_at_work(self) -> int:
        """The number of sessions with a run that does not wait for its client."""
        return sum(session.busy for session in self._sessions)

    @property
    def _sessions(self) -> Sequence[Session]:
        if self._start is None or not self._start.done() or self._start.exception() is not None:
            return ()
        return self._start.result().sessions.held

    def differs(self, start: object) -> bool:
        """Whether a process that an editor starts now would have another version, other settings or another environment of its
        agents. `start` is what the editor's first line has of that.
        """
        if not isinstance(start, dict):
            return False
        if (start.get("version"), start.get("settings")) != (__version__, settings_digest(self.settings)):
            return True
        return not all(agent.has_environment(start.get("environment", {})) for agent in self.agents)

    async def close(self) -> None:
        """Close the gateway if it is open. Raises nothing."""
        if self._start is not None and self._start.done() and self._start.exception() is None:
            await self._start.result().close()


async def _serve(gateway: _StartingGateway, first: socket.socket, standard_error: logging.Handler) -> None:
    async with adopted_orphans():
        stop, released = asyncio.Event(), asyncio.Event()

        def release() -> str | None:
            if gateway.runs_under_way:
                return f"runs of editors are under way ({gateway.runs_under_way}); start it when they have ended"
            released.set()
            stop.set()
            return None

        def ends_for(hello: Mapping[str, Any]) -> bool:
            if gateway.runs_under_way or not gateway.differs(hello.get(STARTED_WITH)):
                return False
            stop.set()
            return True

        settings = gateway.settings
        clients = LocalSocket(
            gateway, settings.data_dir, release=release, ends_for=ends_for, keep_last=not settings.server.linger
        )
        try:
            await clients.open()
        except OSError as error:
            log.warning("other editors cannot be served with the data directory %s: %s", gateway.settings.data_dir, error)
        await clients.add(first)
        for number in end_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        stopping = asyncio.create_task(stop.wait())
        try:
            await _serve_clients(gateway, clients, stopping, standard_error)
        finally:
            stopping.cancel()
            clients.stop_accepting()
            if released.is_set():
                try:
                    clients.reserve(RESERVED)
                except OSError as error:
                    log.warning("an editor may start a process before the daemon has started: %s", error)
            await gateway.close()


async def _serve_clients(
    gateway: _StartingGateway, clients: LocalSocket, stopping: asyncio.Task[bool], standard_error: logging.Handler
) -> None:
    # The imports would delay the answer to a message that is there already.
    answered = asyncio.create_task(clients.answered.wait())
    await asyncio.wait([answered, stopping], timeout=FIRST_ANSWER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    answered.cancel()
    opened = asyncio.create_task(gateway.opened())
    await asyncio.wait([opened, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        return
    try:
        opened.result()
    except BaseException:
        # The requests that wait for the gateway get the error first.
        await clients.drain(FINISH_TIMEOUT)
        raise
    # Editors display lines of standard error as errors, or log them as such. From here on the clients get the errors. What is
    # written there in spite of that is in the log: the first editor must not wait for the end of its standard error.
    standard_error.setLevel(logging.CRITICAL + 1)
    _redirect_standard_error(gateway.settings.data_dir / LOG_FILE)
    unused = asyncio.create_task(_unused(gateway, clients))
    await asyncio.wait([unused, stopping], return_when=asyncio.FIRST_COMPLETED)
    unused.cancel()


async def _unused(gateway: _StartingGateway, clients: LocalSocket) -> None:
    """Wait until there has been no client for `server.linger` seconds, and no run is at work.

    The next editor, such as one that is restarted, need not wait for the start of a process.
    """
    linger = gateway.settings.server.linger
    while True:
        await clients.none_left()
        if not linger:
            return
        try:
            async with asyncio.timeout(linger):
                await clients.some()
        except TimeoutError:
            if not gateway.runs_at_work:
                return


def _redirect_standard_error(file: Path) -> None:
    sys.stderr.flush()
    log_file = private_file(file, os.O_WRONLY | os.O_APPEND)
    os.dup2(log_file, sys.stderr.fileno())
    os.close(log_file)
