"""Runs a program of the gateway's own to its end: in a sandbox, and bounded in time, output and number.

For what the gateway runs on files that agents write, such as git. The thread that starts the program restricts itself before, so
that the program is restricted from its first instruction on. No other program is executed for that, which would take longer than
most commands of git.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from weakref import WeakValueDictionary

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import in_thread
from drivers.runtime.sandbox_exec import restrict_thread

TERMINATION_SECONDS = 5.0
"""Seconds that a program has to end by itself when it is ended. Git removes its lock files."""
MAX_ERRORS = 2000
"""Bytes of the standard error that are kept."""
CHUNK = 256 * 1024
"""Bytes that are read or written at once."""
EXIT_CHECK_SECONDS = 0.001, 0.5
"""Seconds between two looks whether a program has exited: the first, which are doubled, and the most. An exited child that
nothing reaps for some seconds is taken for an orphan of an agent (drivers/runtime/subreaper.py)."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command, its folder and its complete environment, with limits for its time in seconds and its output in bytes."""

    argv: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    seconds: float
    max_output: int
    entered: bytes | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program has ended, and what it has written. It was ended if its output is `truncated`, after `max_output` bytes."""

    status: int
    output: bytes
    errors: bytes
    truncated: bool = False


class OverTime(Exception):
    """A program has not ended within its time."""


class NoPlace(Exception):
    """No place was free in time. `of_owner`: all places of the owner were taken, and not those of all owners."""

    def __init__(self, *, of_owner: bool) -> None:
        super().__init__("the owner's places are taken" if of_owner else "all places are taken")
        self.of_owner = of_owner


class Places:
    """How many programs run at the same time: so many of each owner, and so many in all. Others wait in line.

    Parameters:
        each: The number for each owner.
        total: The number in all.
        seconds: How long one waits in line.
        clock: The clock of that limit.
    """

    def __init__(self, each: int, total: int, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._each, self._all, self._seconds, self._clock = each, asyncio.Semaphore(total), seconds, clock
        self._owners: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def place(self, owner: str) -> AsyncIterator[None]:
        """Wait for a place of an owner, and have it inside. Raises NoPlace."""
        own = self._owners.setdefault(owner, asyncio.Semaphore(self._each))
        has_own = False
        try:
            # First a place among the owner's own: those of one owner who wait are in nobody's way.
            async with self._clock.timeout(self._seconds) as waiting, own:
                has_own = True
                async with self._all:
                    waiting.reschedule(None)
                    yield
        except TimeoutError:
            if waiting.expired():
                raise NoPlace(of_owner=not has_own) from None
            raise


async def run(program: Program, ruleset: int | None, clock: Clock = SYSTEM_CLOCK) -> Ended:
    """Run a program, restricted by a Landlock ruleset unless that is None. Its process group ends with it, also if the caller is
    cancelled. Raises OSError if it cannot be started, and OverTime."""
    stop, stopped = socket.socketpair()
    running = asyncio.ensure_future(in_thread(_run, program, ruleset, stopped))
    running.add_done_callback(lambda _: stopped.close())
    # A caller that is cancelled does not read the result.
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await clock.wait([running], program.seconds)
    finally:
        # The thread ends the program, if that still runs, and also if this is cancelled again meanwhile.
        stop.close()
        await asyncio.wait([running])
    return running.result()


def _run(program: Program, ruleset: int | None, stopped: socket.socket) -> Ended:
    """Run a program in this thread, which nothing else may use afterwards."""
    if ruleset is not None:
        restrict_thread(ruleset)
    with _Running(program, stopped) as running:
        running.exchange()
        return running.ended()


class _Running:
    """A program that was started. It is ended on leaving, with its process group, if it has not ended by then.

    `stopped` becomes readable when the program is to be ended.
    """

    def __init__(self, program: Program, stopped: socket.socket) -> None:
        self._program, self._stopped = program, stopped
        self._process = subprocess.Popen(
            program.argv, cwd=program.folder, env=program.env, process_group=0, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL if program.entered is None else subprocess.PIPE,
        )  # fmt: skip
        self._output, self._errors, self._truncated = bytearray(), bytearray(), False
        self._unwritten = memoryview(program.entered or b"")

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._has_exited():
                self._signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(TERMINATION_SECONDS)
                self._signal(signal.SIGKILL)
                self._process.wait()
        finally:
            # A process that has left the group may keep them open for as long as it likes.
            for pipe in self._pipes():
                with suppress(OSError):
                    pipe.close()

    def _pipes(self) -> list[IO[bytes]]:
        return [pipe for pipe in (self._process.stdin, self._process.stdout, self._process.stderr) if pipe is not None]

    def exchange(self) -> None:
        """Write the input, and read the output to its end or up to its limit. Raises OverTime."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            for pipe in self._pipes():
                os.set_blocking(pipe.fileno(), False)
                if pipe is self._process.stdin:
                    selector.register(pipe, selectors.EVENT_WRITE, self._write)
                else:
                    selector.register(pipe, selectors.EVENT_READ, self._read)
            while len(selector.get_map()) > 1 and not self._truncated:
                ready = selector.select(EXIT_CHECK_SECONDS[1])
                self._has_exited()
                for key, _ in ready:
                    if key.data is None:
                        raise OverTime
                    if not key.data(key.fileobj):
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]

    def _write(self, pipe: IO[bytes]) -> bool:
        """Write a part of the input. Returns whether there is more."""
        with suppress(BrokenPipeError):
            self._unwritten = self._unwritten[os.write(pipe.fileno(), self._unwritten[:CHUNK]) :]
            return bool(self._unwritten)
        return False

    def _read(self, pipe: IO[bytes]) -> bool:
        """Read a part of the output. Returns whether there is more."""
        data = os.read(pipe.fileno(), CHUNK)
        is_output = pipe is self._process.stdout
        # What is over a limit is read too: otherwise the program would wait for somebody who reads it, and never end.
        kept, most = (self._output, self._program.max_output) if is_output else (self._errors, MAX_ERRORS)
        room = most - len(kept)
        kept += data[:room]
        self._truncated = self._truncated or (is_output and len(data) > room)
        return bool(data)

    def ended(self) -> Ended:
        """Wait for the end, unless the output was cut. Raises OverTime."""
        status = 0 if self._truncated else self._status()
        return Ended(status, bytes(self._output), bytes(self._errors), self._truncated)

    def _status(self) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            # Most exit when their output ends, or right after.
            seconds = EXIT_CHECK_SECONDS[0]
            while not self._has_exited():
                if selector.select(seconds):
                    raise OverTime
                seconds = min(2 * seconds, EXIT_CHECK_SECONDS[1])
        return self._process.returncode

    def _has_exited(self) -> bool:
        """Whether the program has exited. What is left in its process group is ended then, and the program is reaped."""
        if self._process.returncode is None and sys.platform == "linux":
            # Before it is reaped: until then no other group can have its number.
            if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self._signal(signal.SIGKILL)
        return self._process.poll() is not None

    def _signal(self, number: signal.Signals) -> None:
        # macOS does not permit it for a group whose processes have all ended.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
