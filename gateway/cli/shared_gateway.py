"""Finds the process that serves a data directory to editors, or starts it: the first `portico acp` forks it, the next connect.

It imports the gateway only where it starts the process.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click import ClickException

from gateway import __version__
from gateway.cli.editor_lines import EditorLines, ServingProcessFailed
from gateway.cli.options import config_errors
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.security.socket_peer import connect, is_same_user
from gateway.security.socket_proof import prove
from gateway.server.data_dir_lock import DataDirLocked, data_dir_lock

RECORD = "acp-socket.json"
"""The file in a data directory with the path of the socket and the token that connects to it: mode 0600."""
ANSWER_TIMEOUT = 10.0
"""Seconds for the first answer of a process that accepts connections."""
RESERVED = 15.0
"""Seconds for a daemon to start, before the editors start a process of their own again."""
EXIT_WAIT = 1.0
"""Seconds for a process that has closed its connection to exit."""
WAIT, MIN_WAIT = 5.0, 0.02
"""Seconds after `limits.grace` for a process that starts or ends; and between two attempts."""
STARTED_WITH = "started_with"
"""The key of an editor's first line with what a process that it started would have: version, settings, and environment."""
START_ERROR, FAULT = 1, 70
"""Exit codes of the serving process: the settings or the data directory do not allow its start; and any other error."""


@dataclass(frozen=True, slots=True)
class EditorRequest:
    """The request of an editor's process: the agent, and whether new sessions take slash commands."""

    agent: str
    slash_commands: str | None = None


def settings_digest(settings: Settings) -> str:
    """Return a digest of all values of the settings."""
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()


class SharedGateway:
    """Connects this process to the serving process of `data_dir`, and starts a serving process if there is none.

    `load` returns the settings. A serving process has the settings of the process that has started it, for all editors.
    """

    def __init__(self, data_dir: Path, load: Callable[[], Settings], request: EditorRequest) -> None:
        self._data_dir, self._load, self._request = data_dir, load, request
        self._started: int | None = None
        self._running = -1
        """The end of a pipe that is readable once the process that this one has started has exited."""

    def serve_editor(self) -> int:
        """Carry lines of standard input and output, and return the exit code. Raises ConfigError."""
        try:
            return EditorLines(self.connect, self._has_failed).run()
        except ServingProcessFailed as error:
            raise ConfigError(str(error)) from None

    def connect(self, last_request_id: int) -> socket.socket:
        """Return a connection. Raises ConfigError, ServingProcessFailed for what is found later."""
        hello = {
            "agent": self._request.agent,
            "slash_commands": self._request.slash_commands,
            "folder": os.getcwd(),
            "last_request_id": last_request_id,
            STARTED_WITH: {
                "version": __version__,
                "settings": settings_digest(self._load()),
                "environment": {name: value for name, value in os.environ.items() if _is_utf8(name + value)},
            },
        }
        deadline: float | None = None
        while True:
            record = self._record()
            connection = self._attach(record, hello)
            # The clock begins anew with the system: a record of an earlier start of it does not count for longer.
            reserved = 0.0 < record.get("reserved_until", 0.0) - time.monotonic() <= RESERVED
            if connection is None and not reserved:
                connection = self._start(hello)
            if connection is not None:
                return connection
            if deadline is None or reserved:
                deadline = time.monotonic() + self._load().limits.grace + WAIT
            if time.monotonic() > deadline:
                raise ServingProcessFailed(
                    f"another portico runs with the data directory {self._data_dir} and accepts no editors; stop it, or choose "
                    "another directory with --data-dir"
                )
            time.sleep(MIN_WAIT)

    def _record(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self._data_dir / RECORD).read_bytes()))
        except (OSError, ValueError):
            return {}

    def _attach(self, record: dict[str, Any], hello: dict[str, Any]) -> socket.socket | None:
        """Connect to the serving process of the data directory. None if there is no such process, or if it ends."""
        path, token = record.get("path"), record.get("token")
        if path is None or not isinstance(token, str):
            return None
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(ANSWER_TIMEOUT)
            connect(connection, path)
            same_user = is_same_user(connection)
        except OSError:
            same_user = False
        if not same_user:
            connection.close()
            return None
        return self._introduced(connection, hello, token)

    def _introduced(self, connection: socket.socket, hello: dict[str, Any], token: str | None = None) -> socket.socket | None:
        """Send the first line, and return the connection. None if the process ends. Raises ServingProcessFailed.

        With a `token` nothing is sent to a process that does not prove that it knows it: None for that too.
        """
        try:
            if token is not None:
                proven = prove(connection, token)
                if proven is None:
                    connection.close()
                    return None
                hello = {**hello, "proof": proven}
            connection.sendall(json.dumps(hello).encode() + b"\n")
            answer = _first_line(connection)
            error = json.loads(answer).get("error") if answer else None
            if error is not None:
                raise ServingProcessFailed(error)
            if answer:
                return connection
        except TimeoutError:
            connection.close()
            raise ServingProcessFailed(
                f"the process that serves the data directory {self._data_dir} does not answer; end it, and try again"
            ) from None
        except ConnectionError:
            pass
        except ServingProcessFailed:
            connection.close()
            raise
        connection.close()
        return None

    # -- the serving process -----------------------------------------------------------------------------------------

    def _start(self, hello: dict[str, Any]) -> socket.socket | None:
        """Fork the serving process. None if another process has the data directory."""
        # With asyncio and the drivers, which `portico acp` does not need if a process serves the data directory already.
        from gateway.cli.serving_process import checked_agents, serve_editors

        settings = self._load()
        agents = checked_agents(settings, self._request.agent)
        try:
            with data_dir_lock(settings.data_dir):
                gc.freeze()
                ours, theirs = socket.socketpair()
                self._exit_code(0.0)
                self._running, running = os.pipe()
                self._started = os.fork()
                if self._started == 0:
                    ours.close()
                    os.close(self._running)
                    _run(lambda: serve_editors(settings, agents, theirs))
                theirs.close()
                os.close(running)
        except DataDirLocked:
            return None
        ours.settimeout(ANSWER_TIMEOUT)
        connection = self._introduced(ours, hello)
        if connection is None and self._exit_code() in (START_ERROR, FAULT):
            # It has printed why. Another one would fail for the same reason.
            sys.exit(START_ERROR)
        return connection

    def _has_failed(self) -> bool:
        """Whether the process that this one has started could not start. It has printed why."""
        return self._exit_code() == START_ERROR

    def _exit_code(self, wait: float = EXIT_WAIT) -> int | None:
        """Return the exit code of the process that this one has started, once; None if it does not end within some seconds."""
        if self._started is None or not select.select([self._running], [], [], wait)[0]:
            return None
        started, self._started = self._started, None
        os.close(self._running)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(started, 0)[1])
        except ChildProcessError:
            return None


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


def _run(serve: Callable[[], None]) -> None:
    """Run the serving process, and exit. It outlives the editor that has started it: it is in a process session of its own."""
    code = FAULT
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        with open(os.devnull, "r+b", buffering=0) as null:
            os.dup2(null.fileno(), 0)
            os.dup2(null.fileno(), 1)
        gc.enable()
        with config_errors():
            serve()
        code = 0
    except ClickException as error:
        code = START_ERROR
        error.show()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        # Without the threads of a write that the database blocks, and what belongs to the process that was forked.
        os._exit(code)
