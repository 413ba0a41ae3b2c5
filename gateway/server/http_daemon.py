"""The daemon of `portico serve`: serves all protocols over HTTP, and announces the address."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import uvicorn
from starlette.types import ASGIApp

from gateway.app import Gateway
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.http.file_descriptors import client_connection_limit
from gateway.http.server import Server, bound_sockets, listening_address, server_config, web_socket
from gateway.installation import FORMER_NAME, command_without_former_name
from gateway.observability.logs import set_up_logging
from gateway.protocols.acp.transport.local_socket import take_over
from gateway.security.api_keys import default_api_keys
from gateway.security.loopback import check_key_lengths, check_no_auth
from gateway.security.redaction import Redactor
from gateway.security.socket_proof import RECORD
from gateway.server.app import create_app
from gateway.server.daemon import EXIT_TIMEOUT, Daemon
from gateway.server.data_dir_lock import DataDirLocked, data_dir_lock, received_lock
from gateway.server.service_manager import announce_ready

log = logging.getLogger(__name__)

KEEP_ALIVE = 75
"""Seconds that an idle HTTP connection stays open. Longer than in clients with a connection pool, so that no client sends a
request on a connection that is being closed."""
PING_INTERVAL = 20.0
PONG_TIMEOUT = 60.0
"""Seconds for a WebSocket client to read what was sent before a ping, and to answer the ping."""


def serve(settings: Settings, *, no_auth: bool = False, hints: Callable[[str, str | None], str] | None = None) -> None:
    """Run the daemon until SIGINT, SIGTERM or SIGHUP.

    `hints` takes the URL of the daemon and the link that opens the console, None without it, and returns a text, which is printed
    to standard error once the daemon listens.
    Raises ConfigError if the settings do not allow the start, if another process uses the data directory, or if the address, the
    directory or the store cannot be used.
    """
    check_no_auth(settings.server.host, no_auth)
    data_dir, exit_time = settings.data_dir, settings.limits.grace + EXIT_TIMEOUT
    lock = _lock(data_dir, exit_time)
    redactor = Redactor()
    set_up_logging(settings.server.log_level, settings.server.log_format, redactor)
    if command := command_without_former_name():
        log.warning("replace the package `%s`, the former name of this one: %s", FORMER_NAME, command)
    keys = () if no_auth else default_api_keys(settings)
    check_key_lengths(settings.server.host, keys)
    gateway = Gateway(settings, keys, redactor)
    server = Server(uvicorn_config(gateway, create_app(gateway), settings.server.host, settings.server.port))
    sockets = _bound(settings, other=lock is None)
    # Last, so that a start that fails ends no other daemon.
    lock = lock or _lock(data_dir, exit_time, end_other=True)
    assert lock is not None
    with lock:
        _HttpDaemon(gateway, lock, server, sockets, hints).run()


def _lock(data_dir: Path, exit_time: float, *, end_other: bool = False) -> IO[str] | None:
    """Lock the data directory. Return None if a daemon accepts connections there.

    With `end_other` that daemon is asked to end, which it does if it serves editors only: they connect to this one then. A daemon
    that accepts no connections may be about to end: it has `exit_time` seconds. Raises ConfigError.
    """
    deadline = time.monotonic() + exit_time
    while True:
        try:
            return data_dir_lock(data_dir)
        except DataDirLocked:
            if not end_other and (data_dir / RECORD).exists():
                return None
            if end_other and (descriptor := take_over(data_dir)) is not None:
                return received_lock(descriptor)
            if time.monotonic() > deadline:
                raise
        time.sleep(0.005)


def _bound(settings: Settings, *, other: bool) -> list[socket.socket]:
    """Return sockets with the address of the settings. `other`: another daemon serves the data directory.

    Raises ConfigError if the address cannot be used.
    """
    host, port = settings.server.host, settings.server.port
    try:
        return asyncio.run(bound_sockets(host, port))
    except OSError as error:
        text = f"cannot listen on {_url(host, port)}: {error.strerror}; choose another address with --host and --port"
        if other:
            text += f", or stop the other portico, which runs with the data directory {settings.data_dir}"
        raise ConfigError(text) from None


def uvicorn_config(gateway: Gateway, app: ASGIApp, host: str, port: int) -> uvicorn.Config:
    """Return the configuration with which uvicorn serves a gateway by its app."""
    settings = gateway.settings
    return server_config(
        app,
        client_connection_limit(settings.limits.live_agents),
        host=host,
        port=port,
        ws=web_socket,
        ws_max_size=settings.server.max_body,
        ws_ping_interval=PING_INTERVAL,
        ws_ping_timeout=PONG_TIMEOUT,
        timeout_keep_alive=KEEP_ALIVE,
        # Not None: uvicorn would believe every program of this machine then.
        proxy_headers=bool(settings.server.trusted_proxies),
        forwarded_allow_ips=list(settings.server.trusted_proxies),
    )


class _HttpDaemon(Daemon):
    """Serves all protocols by uvicorn, which leaves signals to the daemon."""

    def __init__(
        self,
        gateway: Gateway,
        lock: IO[str],
        server: Server,
        sockets: list[socket.socket],
        hints: Callable[[str, str | None], str] | None,
    ) -> None:
        super().__init__(gateway, lock)
        self._server, self._sockets, self._hints = server, sockets, hints

    async def serve(self) -> None:
        announcing = asyncio.create_task(self._announce())
        try:
            await self._server.serve(self._sockets)
        finally:
            announcing.cancel()

    def close(self, seconds: float) -> None:
        self._server.config.timeout_graceful_shutdown = seconds  # type: ignore[assignment]  # It may be a fraction.
        self._server.should_exit = True

    def cut(self) -> None:
        self._server.force_exit = True

    async def _announce(self) -> None:
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.002)
        self.started()
        host, port = listening_address(self._server)
        url = _url(host, port)
        sys.stdout.write(f"portico listening on {url}\n")
        sys.stdout.flush()
        announce_ready(url)
        if self._hints:
            sys.stderr.write(self._hints(url, await self._console_link(host, port)))

    async def _console_link(self, host: str, port: int) -> str | None:
        if not self.gateway.settings.server.console:
            return None
        auth = self.gateway.auth
        code = "" if auth.is_off else f"#code={await self.gateway.credentials.make_code(auth.default_key)}"
        return f"{_url({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(host, host), port)}/console/{code}"


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
