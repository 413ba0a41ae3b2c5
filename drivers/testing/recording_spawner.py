"""A spawner that records which commands were started, what they read and wrote, and which processes still run."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat

import psutil

from drivers.contract.codec import Command
from drivers.runtime.file_threads import in_thread
from drivers.runtime.process import Process, Spawner
from drivers.runtime.process_tree import end_processes, family, living

STOPPED = 'kill -STOP $$; exec "$0" "$@"'
"""A shell command that stops (SIGSTOP) and then becomes the program in its arguments."""


@dataclass
class Started:
    """One process: its command, the lines that it printed, and what was written to it."""

    command: Command
    process: Process
    printed: list[bytes] = field(default_factory=list)
    written: bytearray = field(default_factory=bytearray)


class Watched(Spawner):
    """Give it to a driver; `started` are its processes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Started] = []
        self.suspends = False
        """Whether a process is stopped before its program begins."""

    async def spawn(self, command: Command, *, lines: bool = True) -> Process:
        # A signal from here could come after a quick program has done its work.
        suspended = replace(command, argv=("/bin/sh", "-c", STOPPED, *command.argv)) if self.suspends else command
        process = await super().spawn(suspended, lines=lines)
        started = Started(command, process, written=bytearray(command.stdin or b""))
        read, read_available, write = process.read_lines, process.available_lines, process.write

        async def read_lines() -> list[bytes]:
            lines = await read()
            started.printed += lines
            return lines

        async def available_lines() -> list[bytes]:
            lines = await read_available()
            started.printed += lines
            return lines

        def record_and_write(data: bytes | bytearray) -> None:
            started.written += data
            write(data)

        process.read_lines, process.available_lines = read_lines, available_lines  # type: ignore[method-assign]
        process.write = record_and_write  # type: ignore[method-assign]
        self.started.append(started)
        return process

    @property
    def given(self) -> bytes:
        """All that the processes were given, but for their arguments and environment."""
        files = b"\n".join(content for started in self.started for content in started.command.files.values())
        return files + b"\n" + b"\n".join(bytes(started.written) for started in self.started)

    async def running(self) -> list[psutil.Process]:
        """What runs of all that was started, strays in sessions of their own included."""
        return living(await in_thread(self._all))

    async def left(self, seconds: float) -> list[psutil.Process]:
        """What still runs after so long; a process that was killed takes a moment to go."""
        deadline = time.monotonic() + seconds
        for pause in repeat(0.05):
            found = await self.running()
            if not found or time.monotonic() > deadline:
                break
            await asyncio.sleep(pause)
        return found

    async def suspend(self) -> None:
        """Stop the processes (SIGSTOP), so that they read nothing of what is written to them."""
        for process in await self.running():
            with suppress(psutil.Error):
                process.suspend()

    async def kill(self) -> None:
        """SIGKILL to the agent's own process, as the system's out-of-memory killer does it."""
        alive = [started.process for started in self.started if started.process.is_there()]
        for process in alive[:1]:
            with suppress(psutil.Error):
                psutil.Process(process.pid).kill()

    async def end(self) -> None:
        """End what is left, so that a check leaves nothing behind."""
        await end_processes(self._all, 0.0, lambda: None)
        for started in self.started:
            await started.process.close(0.0)

    def _all(self) -> set[psutil.Process]:
        return set().union(*(family(started.process.root) for started in self.started))
