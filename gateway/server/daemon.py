"""The daemon's life in the operating system: one data directory each, the listening line, signals, the exit."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import uvicorn

from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.gateway import Gateway
from gateway.observability.logs import set_up_logging
from gateway.security.api_keys import default_api_keys
from gateway.security.loopback import check_no_auth
from gateway.security.redaction import Redactor
from gateway.server.app import create_app
from gateway.server.header_limits import KEEP_ALIVE, HeaderLimitProtocol
from gateway.server.websocket_limits import PING_EVERY, PONG_WITHIN, WebSocketLimitProtocol

LAST_WORDS = 5.0
"""Seconds that clients have to read the end of their streams at a shutdown."""


def serve(settings: Settings, *, no_auth: bool = False, hints: Callable[[str], str] | None = None) -> None:
    """Run the daemon until a signal. `hints` makes, of its URL, what is said on standard error once it listens.

    Raises ConfigError where it must not start.
    """
    check_no_auth(settings.server.host, no_auth)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with data_dir_lock(settings.data_dir):
        redactor = Redactor()
        set_up_logging(settings.server.log_level, settings.server.log_format, redactor)
        keys = () if no_auth else default_api_keys(settings)
        gateway = Gateway(settings, keys, redactor)
        config = uvicorn_config(gateway, settings.server.host, settings.server.port)
        server = Server(config, gateway, hints)
        asyncio.run(server.serve())
        if not server.started:
            raise ConfigError(
                f"the gateway could not start on {settings.server.host}:{settings.server.port}; its log above says why"
            )


def uvicorn_config(gateway: Gateway, host: str, port: int) -> uvicorn.Config:
    """How uvicorn serves a gateway."""
    return uvicorn.Config(
        create_app(gateway),
        host=host,
        port=port,
        http=HeaderLimitProtocol,
        ws=WebSocketLimitProtocol,
        ws_max_size=gateway.settings.server.max_body,
        ws_ping_interval=PING_EVERY,
        ws_ping_timeout=PONG_WITHIN,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(LAST_WORDS),
    )


class Server(uvicorn.Server):
    """uvicorn that ends runs before it closes connections, and that exits with 0 on a signal."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, hints: Callable[[str], str] | None = None) -> None:
        super().__init__(config)
        self._gateway, self._hints = gateway, hints

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.freeze()
        gc.enable()
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            url = f"http://{shown}:{port}"
            sys.stdout.write(f"portico listening on {url}\n")
            sys.stdout.flush()
            if self._hints:
                sys.stderr.write(self._hints(url))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._gateway.stop_runs()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal again when all is done, and the exit code would say that it was killed.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


@contextmanager
def data_dir_lock(data_dir: Path) -> Iterator[IO[str]]:
    """Hold a data directory for this process: two daemons would end each other's agents. Raises ConfigError."""
    with open(data_dir / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another portico runs with the data directory {data_dir}; stop it, or give this one its own with --data-dir"
            ) from None
        yield file
