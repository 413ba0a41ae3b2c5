"""The daemon that `portico acp` starts for its data directory: it serves editors by the local socket, and ends without them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from gateway import __version__
from gateway.agents.configured_agents import Agents
from gateway.agents.discovery import Discovery
from gateway.app import Gateway
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.observability.logs import set_up_logging
from gateway.private_files import private_file
from gateway.security.redaction import Redactor
from gateway.server.daemon import Daemon
from gateway.server.service_manager import SOCKET as SERVICE_SOCKET

LOG_FILE = "acp.log"
"""The log, in the data directory."""
CONNECT_TIMEOUT = 10.0
"""Seconds for the first editor to connect."""


def serve_editors(settings: Settings, lock: IO[str], started: Callable[[], None]) -> None:
    """Run the daemon until there has been no editor for `server.linger` seconds, or until SIGINT, SIGTERM or SIGHUP.

    `lock` is the file of `data_dir_lock`. `started` is called once editors can connect.
    Raises ConfigError if the settings do not allow the start, or if the data directory, its socket or the store cannot be used.
    """
    # Of the editor, if it is a service itself.
    os.environ.pop(SERVICE_SOCKET, None)
    with lock:
        redactor, server = Redactor(), settings.server
        standard_error = set_up_logging(server.log_level, server.log_format, redactor, settings.data_dir / LOG_FILE)
        agents = Agents(settings, any_directory=True)
        # The programs of agents that no editor uses are not started.
        discovery = Discovery(agents, settings.data_dir, redactor, probes_at_start=False)
        gateway = Gateway(settings, (), redactor, agents, discovery)
        _EditorsDaemon(gateway, lock, standard_error, started).run()


class _EditorsDaemon(Daemon):
    """Serves editors only."""

    def __init__(
        self, gateway: Gateway, lock: IO[str], standard_error: logging.Handler, tell_started: Callable[[], None]
    ) -> None:
        super().__init__(gateway, lock)
        self._standard_error, self._tell_started = standard_error, tell_started
        # The last editor ends with this process then.
        self.editors.keep_last = not gateway.settings.server.linger
        self._closed = asyncio.Event()
        self._has_served = False

    async def serve(self) -> None:
        self.started()
        # Editors display lines of standard error as errors, or log them as such. What is written there in spite of that is in the
        # log.
        self._standard_error.setLevel(logging.CRITICAL + 1)
        _redirect(sys.stderr, private_file(self.gateway.settings.data_dir / LOG_FILE, os.O_WRONLY | os.O_APPEND))
        self._tell_started()
        ending = asyncio.create_task(self._end_without_editors())
        await self._closed.wait()
        ending.cancel()

    def close(self, seconds: float) -> None:
        self._closed.set()

    def cut(self) -> None:
        self._closed.set()

    def without_editors(self, error: OSError) -> None:
        raise ConfigError(f"editors cannot be served with the data directory {self.gateway.settings.data_dir}: {error}") from None

    def release(self) -> str | None:
        if count := self._runs_under_way:
            return f"runs of editors are under way ({count}); start it when they have ended"
        self.end()
        return None

    def ends_for(self, hello: Mapping[str, Any], only: bool) -> bool:
        """Whether the editor would start a daemon of another version, with other settings, or with another environment."""
        # The editor that has started this one may not be the first to connect. Two that differ would start it in turn.
        first, self._has_served = not self._has_served, True
        if first or not only or self._runs_under_way or not self._differs(hello.get("started_with")):
            return False
        self.end()
        return True

    def _differs(self, start: object) -> bool:
        if not isinstance(start, dict):
            return False
        if (start.get("version"), start.get("settings")) != (__version__, self.gateway.settings.digest):
            return True
        return not all(agent.has_environment(start.get("environment", {})) for agent in self.gateway.agents)

    @property
    def _runs_under_way(self) -> int:
        """The number of sessions with a run under way, those included whose agent waits for its client."""
        held = self.gateway.sessions.held
        return sum(session.busy or (session.state == "waiting" and session.live is not None) for session in held)

    async def _end_without_editors(self) -> None:
        """End when there has been no editor for `server.linger` seconds, and no run is at work.

        The next editor, such as one that is restarted, need not wait for the start of a daemon.
        """
        linger = self.gateway.settings.server.linger
        seconds = max(linger, CONNECT_TIMEOUT)
        while True:
            try:
                async with self.gateway.clock.timeout(seconds):
                    await self.editors.some()
            except TimeoutError:
                if not self.editors.connected and not any(session.busy for session in self.gateway.sessions.held):
                    break
            await self.editors.none_left()
            seconds = linger
            if not linger:
                break
        self.end()


def _redirect(stream: IO[str], descriptor: int) -> None:
    stream.flush()
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
