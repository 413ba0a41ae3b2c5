"""The daemon process: the lock of its data directory, signals, the editors of its user, shutdown.

`http_daemon.py` adds the HTTP server. `editors_daemon.py` is the daemon that `portico acp` starts, which serves editors only.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any

from drivers.runtime.file_threads import wait_for_threads
from drivers.runtime.subreaper import adopted_orphans
from gateway.app import Gateway
from gateway.protocols.acp.transport.local_socket import LocalSocket
from gateway.server.end_signals import end_signals
from gateway.server.service_manager import announce_stop

log = logging.getLogger(__name__)

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


class Daemon(ABC):
    """Opens a gateway and serves it until SIGINT, SIGTERM or SIGHUP. Runs end before connections, and the exit code is 0 then.

    `lock` is the file of `data_dir_lock`. A daemon that starts gets it if this one has agreed to end for it.
    """

    def __init__(self, gateway: Gateway, lock: IO[str]) -> None:
        self.gateway, self._lock = gateway, lock
        self.editors = LocalSocket(
            gateway, gateway.settings.data_dir, release=self.release, ends_for=self.ends_for, clock=gateway.clock
        )
        self._opened = False
        self._stopping: asyncio.Task[None] | None = None
        self._exit_at: float | None = None
        """The time of the event loop by which the process exits."""

    @abstractmethod
    async def serve(self) -> None:
        """Serve the open gateway until `close`. Call `started` once clients can connect."""

    @abstractmethod
    def close(self, seconds: float) -> None:
        """Let `serve` return. All runs have ended; clients have so many seconds to read what was sent."""

    @abstractmethod
    def cut(self) -> None:
        """Let `serve` return at once, because of a second SIGINT."""

    def release(self) -> str | None:
        """End, because another daemon is to serve the data directory. Return why this one does not, or None."""
        return "stop it, or choose another directory with --data-dir"

    def ends_for(self, hello: Mapping[str, Any], only: bool) -> bool:
        """Whether this daemon ends, so that the client with this first line starts another one. `only`: there is no other."""
        return False

    def run(self) -> None:
        """Run until a signal. Raises ConfigError if the gateway cannot be opened."""
        asyncio.run(self._run())
        if self.gateway.store.abandoned:
            # The interpreter would wait for the thread of a write that the database blocks.
            _exit(_exit_code(self.gateway))
        self.editors.hand_over(self._lock)

    def end(self) -> None:
        """End as by SIGTERM."""
        self._on_signal(signal.SIGTERM)

    def started(self) -> None:
        """Let garbage be collected from here on. What the start has allocated stays for good, as the imported modules do."""
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()

    async def _run(self) -> None:
        threads = ThreadPoolExecutor(thread_name_prefix="files")
        asyncio.get_running_loop().set_default_executor(threads)
        sys.setswitchinterval(SWITCH_INTERVAL)
        for number in end_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        self.gateway.on_end_for_good.append(self.end)
        try:
            async with adopted_orphans():
                await self.gateway.open()
                self._opened = True
                try:
                    if self._exit_at is None:
                        await self._accept_editors()
                        await self.serve()
                    if self._stopping is not None:
                        await self._stopping
                finally:
                    await self.gateway.close()
            if self._exit_at is not None:
                seconds = self._exit_at - asyncio.get_running_loop().time() - FLUSH_TIMEOUT
                if not await _threads_end(threads, min(seconds, THREAD_TIMEOUT)):
                    # asyncio.run and the interpreter would wait for them without a limit.
                    _exit(_exit_code(self.gateway), "the daemon exits although file accesses are blocked")
        finally:
            for number in end_signals():
                asyncio.get_running_loop().remove_signal_handler(number)

    async def _accept_editors(self) -> None:
        """Serve each `portico acp` with this data directory, by a Unix socket."""
        self.gateway.close_last.append(self.editors.close)
        try:
            await self.editors.open()
        except OSError as error:
            self.without_editors(error)

    def without_editors(self, error: OSError) -> None:
        """Called if there can be no socket for editors."""
        log.warning("portico acp cannot be served without --connect: %s", error)

    def _on_signal(self, number: int) -> None:
        if self._exit_at is None:
            seconds = self.gateway.settings.limits.grace + EXIT_TIMEOUT
            self._exit_at = asyncio.get_running_loop().time() + seconds
            _exit_after(seconds + LATE_EXIT, self.gateway, "the daemon exits although its shutdown has not ended")
            announce_stop(seconds + LATE_EXIT)
            # An editor that connects now waits for the next daemon.
            self.editors.stop_accepting()
        if self._opened and self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._exit_at))
        elif number == signal.SIGINT:
            self.cut()

    async def _stop(self, exit_at: float) -> None:
        try:
            await self.gateway.stop_runs()
        finally:
            self.close(max(exit_at - EXIT_TIME - asyncio.get_running_loop().time(), MIN_READ_TIMEOUT))


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
