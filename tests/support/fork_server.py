"""A process that has imported the gateway and the packages of the small ACP agent, and forks at each request: importing them
takes up to a second, for each daemon and each agent. `forked_command` returns the command that runs a module in a fork.

A forked process has the standard streams, folder, umask, environment and exit status of the command, but it is a child of the
server. A forked `portico acp` forks the daemon that it starts. Tests of the start itself, of the process's command line or of
its children run `python -m` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psutil

ROOT = Path(__file__).parents[2]
LAUNCHER = Path(__file__).with_name("fork_launcher.py")
PRELOADED = (
    "gateway.cli.local_daemon",
    "gateway.cli.main",
    "gateway.server.editors_daemon",
    "gateway.server.http_daemon",
    "gateway.protocols.acp.transport.bridge",
    "uvicorn.lifespan.on",
    # Each daemon imports all drivers when it starts, and FastAPI the others when an app is built.
    "drivers.claude.driver",
    "drivers.codex.driver",
    "drivers.echo.driver",
    "drivers.gemini.driver",
    "drivers.script.driver",
    "fastapi.telemetry._runtime",
    "pydantic.v1",
    "acp",
    "mcp.client.stdio",
    "mcp.client.streamable_http",
)
READY = b"ready\n"
"""What the server writes to standard output when it has imported the modules."""
MAX_REQUEST_BYTES = 1 << 18
"""Maximum size of a request."""
MAX_DESCRIPTOR = 1024
"""Above the descriptors of a `portico acp`."""
_at_end: list[Callable[[], None]] = []


def forked_command(module: str, *arguments: str, pid_fd: int | None = None) -> tuple[str, ...]:
    """Return the command for `python -m MODULE ARGUMENTS` in a forked process, whose id is written to `pid_fd`."""
    return (sys.executable, "-I", "-S", str(LAUNCHER), _address(), "" if pid_fd is None else str(pid_fd), module, *arguments)


@functools.cache
def _address() -> str:
    """Return the socket path of this process's fork server, which is started at the first call. `stop` ends it."""
    folder = tempfile.mkdtemp(prefix="portico-fork-")
    path = f"{folder}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(128)
        number = listening.fileno()
        command = (sys.executable, "-m", "tests.support.fork_server", str(number))
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TMPDIR": tempfile.gettempdir()}
        pipe = subprocess.PIPE
        server = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=(number,), cwd=ROOT, env=environment)
    # The imports take seconds on a busy machine; the time limits of tests do not include them.
    assert server.stdout is not None
    assert server.stdout.readline() == READY
    server.stdout.close()

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder)

    _at_end.append(end)
    return path


def stop() -> None:
    """End the server of this process, if it was started."""
    while _at_end:
        _at_end.pop()()


class ForkServer:
    """Forks a process for each connection, kills it when its connection is closed, and sends its exit status."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, socket.socket] = {}
        self._agents: set[int] = set()
        self._ended, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)

    def serve(self) -> None:
        """Serve until standard input is closed."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup)
        for file in (0, self._ended, self._listening):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    return self._end()
                if key.fd == self._ended:
                    os.read(self._ended, 1000)
                    self._reap()
                elif key.fileobj is self._listening:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.data in self._processes:
                    self._forward_signal(key.fileobj, key.data)

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        request, streams, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
        if len(streams) < 3:
            return connection.close()
        pid = os.fork()
        if pid == 0:
            self._close_all()
            connection.close()
            _run(request, streams)
        for number in streams:
            os.close(number)
        self._processes[pid] = connection
        if request.split(b"\0", 2)[1] != b"gateway":
            self._agents.add(pid)
        self._selector.register(connection, selectors.EVENT_READ, pid)
        self._send(connection, pid)

    def _forward_signal(self, connection: socket.socket, pid: int) -> None:
        """Send the process the signal that the launcher received; kill it if the launcher has ended."""
        try:
            number = int(connection.recv(100) or signal.SIGKILL)
        except ConnectionError:
            number = signal.SIGKILL
        if pid in self._agents and number in (signal.SIGTERM, signal.SIGKILL):
            # As the gateway would: it ends the whole tree of an agent's process, which here is the launcher only.
            for child in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        os.kill(pid, number)
        if number == signal.SIGKILL:
            self._selector.unregister(connection)

    def _reap(self) -> None:
        while self._processes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self._processes.pop(pid)
            self._agents.discard(pid)
            if connection.fileno() in self._selector.get_map():
                self._selector.unregister(connection)
            self._send(connection, os.waitstatus_to_exitcode(status))
            connection.close()

    def _send(self, connection: socket.socket, number: int) -> None:
        # The launcher may have been killed.
        with contextlib.suppress(OSError):
            connection.send(b"%d" % number)

    def _end(self) -> None:
        for pid in self._processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _close_all(self) -> None:
        """In a forked process: close what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        self._listening.close()
        os.close(self._ended)
        os.close(self._wakeup)
        for connection in self._processes.values():
            connection.close()


class ForkedDaemon:
    """The process that `portico acp` starts by `Popen`, forked instead."""

    def __init__(self, command: list[str], *, pass_fds: list[int], **options: object) -> None:
        reading, writing = os.pipe()
        self._code: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(writing, 1)
            (lock,) = pass_fds
            os.closerange(3, lock)
            os.closerange(lock + 1, MAX_DESCRIPTOR)
            _run_module(command[command.index("gateway") :])
        os.close(writing)
        self.stdout = os.fdopen(reading, "rb")

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _run(request: bytes, streams: list[int]) -> NoReturn:
    """Run the module of the request in this process, and exit."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    count, *fields = request.decode("utf-8", "surrogateescape").split("\0")
    argv, (folder, umask, *environment) = fields[: int(count)], fields[int(count) :]
    os.chdir(folder)
    os.umask(int(umask))
    os.environ.clear()
    os.environ.update(variable.split("=", 1) for variable in environment)
    _run_module(argv)


def _run_module(argv: list[str]) -> NoReturn:
    """Run a module with its arguments in this process, in a session of its own, and exit."""
    code: object = 1
    try:
        os.setsid()
        sys.argv = argv
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as exit_:
        code = exit_.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for file in (sys.stdout, sys.stderr):
            try:
                file.flush()
            except OSError:
                code = 120
        os._exit(code)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("gateway.cli.local_daemon").Popen = ForkedDaemon  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    os.write(1, READY)
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()
