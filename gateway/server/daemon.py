"""The daemon process: start, the line that announces the address, signals, shutdown."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from drivers.runtime.file_threads import wait_for_threads
from drivers.runtime.subreaper import adopted_orphans
from gateway.app import Gateway
from gateway.config import Settings
from gateway.http.file_descriptors import client_connection_limit
from gateway.http.server import Server, listening_address, server_config, web_socket
from gateway.installation import FORMER_NAME, command_without_former_name
from gateway.observability.logs import set_up_logging
from gateway.protocols.acp.transport.local_socket import LocalSocket, request_release
from gateway.security.api_keys import default_api_keys
from gateway.security.loopback import check_key_lengths, check_no_auth
from gateway.security.process_inspection import deny_process_inspection
from gateway.security.redaction import Redactor
from gateway.server.app import create_app
from gateway.server.data_dir_lock import DataDirLocked, data_dir_lock
from gateway.server.end_signals import end_signals
from gateway.server.service_manager import announce_ready, announce_stop

log = logging.getLogger(__name__)

KEEP_ALIVE = 75
"""Seconds that an idle HTTP connection stays open. Longer than in clients with a connection pool, so that no client sends a
request on a connection that is being closed."""
PING_INTERVAL = 20.0
PONG_TIMEOUT = 60.0
"""Seconds for a WebSocket client to read what was sent before a ping, and to answer the ping."""
EXIT_TIMEOUT = 2.0
"""Seconds after `limits.grace` within which the daemon exits."""
EXIT_TIME = 0.7
"""Seconds of these that the end of the server takes, with its polls every 0.1 s, and that of the store."""
MIN_READ_TIMEOUT = 0.2
"""Seconds that clients have at least to read the end of their streams."""
THREAD_TIMEOUT = 0.5
"""Seconds at most that file accesses in threads have to finish, once the server and the store are closed."""
LATE_EXIT = 3.0
"""Seconds after EXIT_TIMEOUT when the process exits even if the shutdown itself hangs. Not earlier: on a busy machine the
shutdown may be late, and must end the agents first."""
GC_THRESHOLD = 10_000
"""Objects more than were freed, after which garbage is collected. With 700, the default, a burst spends a sixth of its time on
it: an event is three objects, none of them in a cycle."""
FLUSH_TIMEOUT = 0.1
"""Seconds for the log and standard output to be written before an exit that does not wait for threads."""
SWITCH_INTERVAL = 0.001
"""Seconds after which a thread lets another one execute Python code, by default 5 ms. The event loop waits for the store's."""
RELEASE_TIMEOUT = 10.0
"""Seconds for a process that serves editors to end, after it has accepted to."""


def serve(settings: Settings, *, no_auth: bool = False, hints: Callable[[str, str | None], str] | None = None) -> None:
    """Run the daemon until SIGINT, SIGTERM or SIGHUP.

    `hints` takes the URL of the daemon and the link that opens the console, None without it, and returns a text, which is printed
    to standard error once the daemon listens.
    Raises ConfigError if the settings do not allow the start, if another process uses the data directory, or if the directory or
    the store cannot be used.
    """
    deny_process_inspection()
    check_no_auth(settings.server.host, no_auth)
    with _data_dir_lock(settings.data_dir, settings.limits.grace + EXIT_TIMEOUT):
        redactor = Redactor()
        set_up_logging(settings.server.log_level, settings.server.log_format, redactor)
        if command := command_without_former_name():
            log.warning("replace the package `%s`, the former name of this one: %s", FORMER_NAME, command)
        keys = () if no_auth else default_api_keys(settings)
        check_key_lengths(settings.server.host, keys)
        gateway = Gateway(settings, keys, redactor)
        config = uvicorn_config(gateway, create_app(gateway), settings.server.host, settings.server.port)
        asyncio.run(_Daemon(Server(config), gateway, hints).run())
        if gateway.store.abandoned:
            # The interpreter would wait for the thread of a write that the database blocks.
            _exit(_exit_code(gateway))


@contextmanager
def _data_dir_lock(data_dir: Path, exit_time: float) -> Iterator[None]:
    """Lock the data directory. A process that serves it to editors only is asked to end; the editors connect to this one then.

    One that accepts no connections any more may be about to end: it has `exit_time` seconds. Raises ConfigError.
    """
    released = False
    started = time.monotonic()
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(data_dir_lock(data_dir))
                break
            except DataDirLocked:
                # Not the second time: another daemon may have been started since.
                released = released or request_release(data_dir)
                if time.monotonic() > started + (RELEASE_TIMEOUT if released else exit_time):
                    raise
            time.sleep(0.005)
        yield


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


class _Daemon:
    """Serves a gateway until a signal. Runs end before uvicorn closes connections, and the exit code after a signal is 0."""

    def __init__(self, server: uvicorn.Server, gateway: Gateway, hints: Callable[[str, str | None], str] | None) -> None:
        self._server, self._gateway, self._hints = server, gateway, hints
        self._stopping: asyncio.Task[None] | None = None
        self._exit_at: float | None = None
        """The time of the event loop by which the process exits."""

    async def run(self) -> None:
        threads = ThreadPoolExecutor(thread_name_prefix="files")
        asyncio.get_running_loop().set_default_executor(threads)
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._handle_signals()
        self._gateway.on_end_for_good.append(partial(self._on_signal, signal.SIGTERM))
        started: asyncio.Task[None] | None = None
        try:
            async with adopted_orphans():
                # Before uvicorn, which would log an error of the store with its traceback.
                await self._gateway.open()
                await self._accept_editors()
                started = asyncio.create_task(self._on_start())
                await self._server.serve()
                if self._stopping is not None:
                    await self._stopping
            if self._exit_at is not None:
                seconds = self._exit_at - asyncio.get_running_loop().time() - FLUSH_TIMEOUT
                if not await _threads_end(threads, min(seconds, THREAD_TIMEOUT)):
                    # asyncio.run and the interpreter would wait for them without a limit.
                    _exit(_exit_code(self._gateway), "the daemon exits although file accesses are blocked")
        finally:
            if started is not None:
                started.cancel()
            for number in end_signals():
                asyncio.get_running_loop().remove_signal_handler(number)

    async def _accept_editors(self) -> None:
        """Serve each `portico acp` with this data directory, by a Unix socket."""
        editors = LocalSocket(self._gateway, self._gateway.settings.data_dir, clock=self._gateway.clock)
        try:
            await editors.open()
        except OSError as error:
            log.warning("portico acp cannot be served without --connect: %s", error)
        self._gateway.close_last.append(editors.close)

    async def _on_start(self) -> None:
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.002)
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()
        host, port = listening_address(self._server)
        url = _url(host, port)
        sys.stdout.write(f"portico listening on {url}\n")
        sys.stdout.flush()
        announce_ready(url)
        if self._hints:
            sys.stderr.write(self._hints(url, await self._console_link(host, port)))

    async def _console_link(self, host: str, port: int) -> str | None:
        if not self._gateway.settings.server.console:
            return None
        auth = self._gateway.auth
        code = "" if auth.is_off else f"#code={await self._gateway.credentials.make_code(auth.default_key)}"
        return f"{_url({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(host, host), port)}/console/{code}"

    def _handle_signals(self) -> None:
        for number in end_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._exit_at is None:
            seconds = self._gateway.settings.limits.grace + EXIT_TIMEOUT
            self._exit_at = asyncio.get_running_loop().time() + seconds
            _exit_after(seconds + LATE_EXIT, self._gateway, "the daemon exits although its shutdown has not ended")
            announce_stop(seconds + LATE_EXIT)
        if not self._server.started:
            self._server.should_exit = True
        elif self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._exit_at))
        elif number == signal.SIGINT:
            self._server.force_exit = True

    async def _stop(self, exit_at: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._gateway.stop_runs()
        finally:
            seconds = max(exit_at - EXIT_TIME - loop.time(), MIN_READ_TIMEOUT)
            self._server.config.timeout_graceful_shutdown = seconds  # type: ignore[assignment]  # It may be a fraction.
            self._server.should_exit = True


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _threads_end(threads: ThreadPoolExecutor, seconds: float) -> bool:
    """Let these threads and file accesses end. Return whether they have ended after so many seconds at most."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        threads.shutdown()
        wait_for_threads()
        # The loop is closed if the threads have taken longer.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await ended.wait()
    return ended.is_set()


def _exit_code(gateway: Gateway) -> int:
    """Return 1 if the daemon ends because it may not use the store any more, else 0: it ends because of a signal."""
    return int(gateway.ended_for_good)


def _exit_after(seconds: float, gateway: Gateway, warning: str) -> None:
    """Log the warning and exit after so many seconds, unless the process has exited by then."""
    timer = threading.Timer(max(seconds, 0), lambda: _exit(_exit_code(gateway), warning))
    timer.daemon = True
    timer.start()


def _exit(code: int, warning: str = "") -> None:
    """Log the warning, write what is buffered, for FLUSH_TIMEOUT seconds at most, and exit. No thread is waited for."""

    def flush() -> None:
        if warning:
            log.warning(warning)
        logging.shutdown()
        sys.stdout.flush()

    try:
        # In a thread: a pipe that is full blocks it.
        flushing = threading.Thread(target=flush, daemon=True)
        flushing.start()
        flushing.join(FLUSH_TIMEOUT)
    finally:
        os._exit(code)
