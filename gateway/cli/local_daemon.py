"""Connects an editor to the daemon of a data directory, and starts a daemon if none runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from gateway import __version__
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.security.socket_peer import connect, is_same_user
from gateway.security.socket_proof import RECORD, prove
from gateway.server.data_dir_lock import DataDirLocked, data_dir_lock

ANSWER_TIMEOUT = 10.0
"""Seconds for the first answer of a daemon that accepts connections."""
WAIT, MIN_WAIT = 15.0, 0.02
"""Seconds after `limits.grace` for a daemon that starts or ends; and between two attempts."""
TOLD_TO_END = (0, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a daemon that gets a signal while it starts: before it handles signals, and after that."""


class LocalDaemon:
    """The daemon of the data directory that the settings name.

    `load` returns the settings. With the options of the command line in `options` a daemon finds the same settings. `request` is
    the editor's: its agent, and whether new sessions take slash commands.
    """

    def __init__(self, load: Callable[[], Settings], options: Sequence[str], request: dict[str, Any]) -> None:
        self._load, self._options, self._request = load, options, request
        self._started: Popen[bytes] | None = None

    def connect(self, last_request_id: int) -> socket.socket:
        """Return a connection. `last_request_id` is the highest id of the requests that the editor has received.

        Raises ConfigError if no daemon can be reached or started.
        """
        settings = self._load()
        deadline = time.monotonic() + settings.limits.grace + WAIT
        while (connection := self._attached(settings, last_request_id)) is None:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"another portico runs with the data directory {settings.data_dir} and accepts no editors; stop it, or "
                    "choose another directory with --data-dir"
                )
            if self._started is not None:
                # If it has ended, it is not left as a zombie.
                self._started.poll()
            try:
                with data_dir_lock(settings.data_dir) as lock:
                    self._start(lock.fileno())
            except DataDirLocked:
                time.sleep(MIN_WAIT)
        return connection

    def _attached(self, settings: Settings, last_request_id: int) -> socket.socket | None:
        """Connect to the daemon. Return None if no daemon runs, or if it ends."""
        try:
            record = json.loads((settings.data_dir / RECORD).read_bytes())
            path, token = str(record["path"]), str(record["token"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(ANSWER_TIMEOUT)
            connect(connection, path)
            # Neither the token nor the environment is sent to a process that does not know the token.
            proven = prove(connection, token) if is_same_user(connection) else None
            if proven is not None:
                hello = {**self._hello(settings), "last_request_id": last_request_id, "proof": proven}
                connection.sendall(json.dumps(hello).encode() + b"\n")
                if answer := _first_line(connection):
                    if (error := json.loads(answer).get("error")) is not None:
                        raise ConfigError(error)
                    return connection
        except TimeoutError:
            connection.close()
            raise ConfigError(
                f"the daemon that serves the data directory {settings.data_dir} does not answer; end it, and try again"
            ) from None
        except OSError:
            pass
        except ConfigError:
            connection.close()
            raise
        connection.close()
        return None

    def _hello(self, settings: Settings) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if _is_utf8(name + value)}
        started_with = {"version": __version__, "settings": settings.digest, "environment": environment}
        return {**self._request, "folder": os.getcwd(), "started_with": started_with}

    def _start(self, lock: int) -> None:
        """Start a daemon that gets the lock of the data directory, and wait until editors can connect, or until it ends as told.

        Raises ConfigError if it ends otherwise.
        """
        # -P: the folder of the editor's project is not searched for modules.
        command = [sys.executable, "-P", "-m", "gateway", "serve", "--for-editors", str(lock), *self._options]
        # Where the editor has closed it, the daemon's next file would have its number.
        stderr = DEVNULL if sys.stderr is None else None
        # In a session of its own, so that it outlives the editor.
        self._started = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=stderr, pass_fds=[lock], start_new_session=True)
        assert self._started.stdout is not None
        with self._started.stdout as answer:
            line = answer.readline()
        if not line:
            # A daemon that was told to end is started again, as if it had been told so later.
            if (code := self._started.wait()) not in TOLD_TO_END:
                raise ConfigError(f"the daemon has ended at its start (exit code {code})")
            return
        if (error := json.loads(line).get("error")) is not None:
            self._started.wait()
            raise ConfigError(error)


def _is_utf8(text: str) -> bool:
    """Whether a text of the operating system is UTF-8: JSON has no text for what is not."""
    return text.encode(errors="ignore") == os.fsencode(text)


def _first_line(connection: socket.socket) -> bytes:
    """Return the first line, after which nothing follows before the first request. Empty if the connection ends."""
    answer = b""
    while not answer.endswith(b"\n"):
        data = connection.recv(1 << 16)
        if not data:
            return b""
        answer += data
    return answer
