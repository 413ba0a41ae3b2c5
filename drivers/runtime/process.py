"""Starts the process of an agent, passes lines in both directions, and ends the whole process tree.

Codecs interpret the lines (drivers/contract/codec.py); the agent enforces time limits (drivers/runtime/cli_agent.py).
"""

from __future__ import annotations

import asyncio
import copy
import errno
import functools
import logging
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from drivers.contract.agent import ProcessUse
from drivers.contract.codec import Command
from drivers.contract.errors import AgentUnavailable
from drivers.runtime.clock import SYSTEM_CLOCK, Clock, Timer
from drivers.runtime.confined_files import (
    ConfinedFolders,
    NotRegularFile,
    OutsideFolders,
    has_descriptor_paths,
    open_folder,
    regular_file,
)
from drivers.runtime.file_threads import TooManyAccesses, in_thread, in_thread_or_undone
from drivers.runtime.launcher import LaunchedCommand, Launcher
from drivers.runtime.pipes import Pipes, Splitter, Unsplit
from drivers.runtime.process_tree import (
    KILL_SECONDS,
    Root,
    child_runs,
    described,
    end_processes,
    family,
    live_roots,
    memory_and_cpu,
    new_marker,
    process_of,
    searched,
    starting,
)
from drivers.runtime.subreaper import reap
from drivers.runtime.traffic_recorder import TrafficRecorder

log = logging.getLogger(__name__)

MAX_FIRST_LINE = 256
"""Bytes of the first line of a script that Linux reads."""
TERM_SECONDS = 1.0
"""Seconds at most between SIGTERM and SIGKILL."""
FIRST_SEARCH_SECONDS = 1.0
"""Seconds at most that the end of the input waits for the search for descendants."""
REPORT_SECONDS = 10.0
"""Seconds until the event loop has reported the exit of a process that has ended. It takes milliseconds."""
CPU_SECONDS = 0.1
"""Seconds over which the use of the processor is measured."""
LEDGER_SECONDS = 0.5
"""Seconds that a close waits for the ledger. Its write goes on in the background."""
RELEASE_SECONDS = 1.0
"""Seconds that a close waits until what the launchers have made is released. The release goes on in the background."""
LEDGER_RETRIES = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds before each repetition of a failed write of the ledger."""


class Ledger(Protocol):
    """Stores which agent processes run, so that a later daemon finds those that this one has left running.

    A process may stay in the ledger after its end, if `ended` fails: it is identified by pid and start time.
    """

    async def started(self, marker: str, pid: int, created: float) -> None: ...

    async def ended(self, marker: str) -> None: ...


class Process:
    """A running agent process, in a session of its own."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        pipes: Pipes,
        command: LaunchedCommand,
        ledger: Ledger | None,
        recorder: TrafficRecorder | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._transport, self._pipes, self._recorder = transport, pipes, recorder
        self._command, self._ledger = command, ledger
        self._closing: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None
        self._input_ended = False
        self._grace_over = asyncio.Event()
        self._grace_timer: Timer | None = None
        self._in_ledger = asyncio.Event()
        self._late = asyncio.Event()
        self.pid = transport.get_pid()
        found = process_of(self.pid)
        self.created = 0.0 if found is None else found.create_time()
        """The start time in seconds since the epoch."""
        self.root = Root.running(command.marker, self.pid, confined=command.confined)
        """How its processes are found."""
        live_roots[self.root] = False
        pipes.ended.add_done_callback(lambda _: self._begin_close(0.0))

    async def enter_in_ledger(self) -> None:
        """Store that it runs, if there is a ledger. Raises what the ledger raises."""
        try:
            if self._ledger:
                await self._ledger.started(self._command.marker, self.pid, self.created)
        finally:
            self._in_ledger.set()

    @property
    def alive(self) -> bool:
        return not self._pipes.exited.is_set() and self._closing is None

    def is_there(self) -> bool:
        """Whether it runs at this moment, by a system call: the event loop is notified of an exit a little later."""
        return self.alive and child_runs(self.pid)

    @property
    def failure(self) -> str | None:
        """Why nothing more is read from it or written to it, if that is so: a limit of its pipes is reached."""
        return self._pipes.failure

    async def use(self) -> ProcessUse | None:
        """What it takes with everything that it has started. None if the driver's program does not descend from it."""
        if not self._command.descends:
            return None
        try:
            found = await in_thread(family, self.root)
        except OSError:
            found = {process} if (process := process_of(self.pid)) else set()
        memory, cpu = await memory_and_cpu(found, CPU_SECONDS)
        return ProcessUse(self.pid, len(found), memory, round(cpu, 1), self.created)

    def stderr_tail(self) -> list[str]:
        return self._pipes.stderr_tail()

    def write(self, data: bytes | bytearray) -> None:
        """Queue bytes for its standard input. They are dropped, and the next read notices why, if the process has ended or if
        more than MAX_INPUT bytes are unread (`failure`)."""
        whole = bytes(data)
        if self._pipes.write(whole) and self._recorder:
            self._recorder.sent(self.pid, whole)

    @property
    def writable(self) -> bool:
        """Whether it has read its input but for the last INPUT_HIGH_WATER bytes."""
        return self._pipes.writable

    async def wait_until_writable(self) -> None:
        """Wait until it has read its input but for the last few megabytes, or has ended."""
        await self._pipes.wait_until_writable()

    def end_input(self) -> None:
        """Close its standard input once all is written."""
        self._input_ended = True
        self._pipes.end_input()

    async def read_lines(self) -> list[bytes]:
        """The lines that are ready, at least one; [] when there will be no more. Safe to cancel."""
        await self._pipes.readable.wait()
        return self._take()

    @property
    def output_ended(self) -> bool:
        """Whether all lines of the output are read."""
        return self._pipes.output_ends

    def take_unfinished(self) -> bytes:
        """Take the output after its last newline."""
        return self._pipes.take_unfinished()

    async def available_lines(self) -> list[bytes]:
        """The lines that it has written so far, also those that the event loop has not read from the pipe yet. Safe to cancel."""
        await self._pipes.read_available()
        return self._take()

    def _take(self) -> list[bytes]:
        lines = self._pipes.take()
        if self._recorder and lines:
            self._recorder.received(self.pid, lines)
        return lines

    async def exit_code(self, timeout: float = 5.0) -> int:
        """The exit code, negative for a signal, after the output has ended. Ends the process after `timeout` seconds.

        It is that of SIGKILL for a process that has got it and still runs.
        """
        if self._closing is None or not self._closing.done():
            try:
                async with self._clock.timeout(timeout):
                    await self._pipes.exited.wait()
            except TimeoutError:
                await self.close(0.0)
        return self._exit_code

    @property
    def _exit_code(self) -> int:
        code = self._transport.get_returncode()
        return -signal.SIGKILL if code is None else code

    async def close(self, grace: float) -> None:
        """End it and all that it started: end of input, then SIGTERM, then SIGKILL, `grace` seconds at most between.

        A further call with less grace shortens the time before SIGTERM. Raises nothing: a process that SIGKILL does not end is in
        the log. If the search for its processes is late, it is killed, and the end goes on in the background (`unfinished_ends`).
        """
        self._limit_grace(grace)
        # Who closes it does not enter it any more.
        self._in_ledger.set()
        closing = self._begin_close(grace)
        late = asyncio.create_task(self._late.wait())
        await asyncio.wait([closing, late], return_when=asyncio.FIRST_COMPLETED)
        late.cancel()
        if not closing.done():
            with suppress(TimeoutError):
                async with self._clock.timeout(KILL_SECONDS):
                    await self._pipes.exited.wait()

    def _limit_grace(self, seconds: float) -> None:
        at = self._clock.monotonic() + seconds
        if self._grace_timer is None or at < self._grace_timer.when():
            if self._grace_timer is not None:
                self._grace_timer.cancel()
            self._grace_timer = self._clock.call_at(at, self._grace_over.set)

    def _begin_close(self, grace: float) -> asyncio.Task[None]:
        # Also when it has exited by itself: what it has left behind is not ended later than that.
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(grace))
            # The end of the event loop cancels it, even before it has begun.
            self._closing.add_done_callback(self._closed)
        return self._closing

    def _closed(self, _: asyncio.Task[None]) -> None:
        live_roots.pop(self.root, None)
        _unfinished.discard(self)
        self._close_transport()

    async def _close(self, grace: float) -> None:
        left = await self._end(grace)
        self._close_transport()
        if self._command.release:
            await self._clock.wait([asyncio.create_task(_release(self._command))], RELEASE_SECONDS)
        if problems := [problem for ended in self._command.ended if (problem := await ended())]:
            # It stays in the ledger: a later daemon tries again.
            log.warning("process %d of an agent has left something behind: %s", self.pid, "; ".join(problems))
        elif self._ledger:
            self._forgetting = asyncio.create_task(self._forget(self._ledger))
            if not left:
                await self._clock.wait([self._forgetting], LEDGER_SECONDS)

    async def _end(self, grace: float) -> list[psutil.Process]:
        """End it and what it started; the processes that still run."""
        known = set[psutil.Process]()
        search = functools.partial(family, self.root)
        if grace and not self._input_ended:
            # Searched while the process lives: a descendant without the marker is found by its parent only.
            first = asyncio.create_task(searched(search, self._is_late, self._clock))
            await asyncio.wait([first], timeout=FIRST_SEARCH_SECONDS)
            self.end_input()
            await self._exited_or_grace_over()
            known = await first
        self.end_input()
        # From now on no orphan is spared because it may be of this agent: two agents may end at the same time.
        live_roots[self.root] = True
        ended = await end_processes(search, min(grace, TERM_SECONDS), self._is_late, known, self._clock)
        # Others have been adopted by this process; the event loop waits for its own child.
        reap(process for process in ended.found if process.pid != self.pid)
        if ended.left:
            log.warning("processes of an agent still run %g s after SIGKILL: %s", KILL_SECONDS, described(ended.left))
        else:
            # It has ended, whatever the clock says. An event loop that ends before the report leaves the child unreaped.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._pipes.exited.wait(), REPORT_SECONDS)
        if self._recorder:
            self._recorder.ended(self.pid, self._exit_code, self.stderr_tail())
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        return ended.left

    def _is_late(self) -> None:
        """Kill the process itself, and let the end go on in the background: the search for the others has not ended."""
        if not self._late.is_set():
            log.warning("the search for what process %d of an agent has started is late, and goes on; it is killed", self.pid)
            self._late.set()
            _unfinished.add(self)
        with suppress(ProcessLookupError, PermissionError):
            self._transport.kill()

    def _close_transport(self) -> None:
        # It kills a process that still runs, which may be another user's.
        with suppress(PermissionError):
            self._transport.close()

    async def _forget(self, ledger: Ledger) -> None:
        """Delete it from the ledger once it has exited, with repetitions. Until then a later daemon would look for it."""
        await self._in_ledger.wait()
        await self._pipes.exited.wait()
        for delay in (*LEDGER_RETRIES, None):
            try:
                return await ledger.ended(self._command.marker)
            except Exception as error:
                log.warning("the end of process %d cannot be stored: %s", self.pid, error)
            if delay is not None:
                await self._clock.sleep(delay)

    async def _exited_or_grace_over(self) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._pipes.exited, self._grace_over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


_unfinished = set[Process]()


def unfinished_ends() -> int:
    """Return of how many agents whose process is closed other processes are still searched for."""
    return len(_unfinished)


class Spawner:
    """Starts processes; each has the marker of this gateway's `instance` in its environment and is entered in the ledger.

    Its launchers say where the processes run (drivers/runtime/launcher.py). `clock` is the clock of all time limits of its
    processes and agents.
    """

    def __init__(
        self,
        instance: str = "",
        ledger: Ledger | None = None,
        recorder: TrafficRecorder | None = None,
        on_start: Callable[[], None] | None = None,
        temporary: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        self._instance = instance or uuid.uuid4().hex
        self.temporary = temporary
        """The folder for the gateway's own temporary files; None for that of the system."""
        self._ledger, self._recorder, self._on_start = ledger, recorder, on_start
        self._launchers: tuple[Launcher, ...] = ()
        self._max_output: int | None = None

    def with_recorder(self, recorder: TrafficRecorder) -> Spawner:
        """A spawner whose processes are recorded."""
        other = copy.copy(self)
        other._recorder = recorder
        return other

    def with_launcher(self, launcher: Launcher) -> Spawner:
        """A spawner that starts, by this one, what the launcher makes of each command."""
        other = copy.copy(self)
        other._launchers = (launcher, *self._launchers)
        return other

    def with_output_limit(self, size: int) -> Spawner:
        """A spawner each of whose processes may write `size` bytes to standard output: then nothing more is read (`failure`)."""
        other = copy.copy(self)
        other._max_output = size
        return other

    def with_callback(self, on_start: Callable[[], None]) -> Spawner:
        """A spawner that calls `on_start` when it has started a process."""
        other = copy.copy(self)
        other._on_start = on_start
        return other

    def finds(self, program: str, path: str | None) -> bool:
        """Whether a program is found, on PATH if it is a name, and is executable. Blocks.

        It is not looked for if a launcher has programs of its own.
        """
        own = any(launcher.has_programs for launcher in self._launchers)
        return own or shutil.which(program, os.F_OK | os.X_OK, path) is not None

    async def spawn(self, command: Command, *, lines: bool = True) -> Process:
        """Start a command. Raises AgentUnavailable with what to do if it cannot be started.

        Its working folder is opened without following symbolic links, and the process starts in the folder that was opened: a
        link that another process creates in the path leads it nowhere.

        Parameters:
            lines: Whether `read_lines` returns whole lines. If not, it returns the chunks of output as they are.
        """
        untrusted = [folder for launcher in self._launchers for folder in launcher.untrusted]
        try:
            folder = await in_thread_or_undone(functools.partial(_prepared, command, untrusted), os.close)
            launched = await self._launched(command, folder)
        except OSError as error:
            path = error.filename or command.cwd
            raise AgentUnavailable(f"{path} cannot be used: {error.strerror or error}") from error
        # Must not be cancelled half-way: asyncio would reap a child that its own watcher waits for.
        starting = asyncio.ensure_future(self._start(command, launched, folder, None if lines else Unsplit()))
        try:
            process = await asyncio.shield(starting)
            await process.enter_in_ledger()
        except BaseException:
            await asyncio.shield(_undo(starting))
            raise
        return process

    async def _launched(self, command: Command, folder: int) -> LaunchedCommand:
        """The command that starts the process. If that fails, the descriptor of the working folder is closed."""
        launched = LaunchedCommand.of(command, new_marker(self._instance))
        try:
            for launcher in self._launchers:
                launched = await launcher.launch(launched)
        except BaseException:
            _close(folder, *launched.pass_fds)
            await asyncio.shield(_release(launched))
            raise
        return launched

    async def _start(self, command: Command, launched: LaunchedCommand, folder: int, splitter: Splitter | None) -> Process:
        loop = asyncio.get_running_loop()
        starting.add(launched.marker)
        try:
            transport, pipes = await loop.subprocess_exec(
                lambda: Pipes(splitter, self.clock, max_output=self._max_output),
                *launched.argv,
                env=launched.env,
                start_new_session=True,
                pass_fds=launched.pass_fds,
                **_working_folder(folder),
            )
            process = Process(transport, pipes, launched, self._ledger, self._recorder, self.clock)
        except (OSError, ValueError) as error:
            await _release(launched)
            reason = str(error).replace(f"/proc/self/fd/{folder}", str(command.cwd))
            if isinstance(error, FileNotFoundError):
                with suppress(TooManyAccesses):
                    reason = await in_thread(_missing_interpreter, launched.argv[0], reason)
            raise AgentUnavailable(f"cannot start {launched.argv[0]!r} in {command.cwd}: {reason}") from error
        finally:
            starting.discard(launched.marker)
            _close(folder, *launched.pass_fds)
        if self._recorder:
            self._recorder.started(process.pid, command.argv)
        if self._on_start:
            self._on_start()
        if command.stdin is not None:
            process.write(command.stdin)
            process.end_input()
        return process


def _missing_interpreter(program: str, reason: str) -> str:
    """Return which interpreter of a script is missing; `reason` if the program is no script. Blocks.

    For a script that exists the system names the script, and not its interpreter, as the file that it did not find.
    """
    try:
        with regular_file(os.open(program, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            first = file.readline(MAX_FIRST_LINE).decode(errors="replace")
    except (OSError, NotRegularFile):
        return reason
    if not first.startswith("#!"):
        return reason
    name = first[2:].strip(" \t\n").split(" ")[0]
    lines = "; its lines end as on Windows: convert it, for instance with dos2unix" if name.endswith("\r") else ""
    return f"its first line names the interpreter {name!r}, which does not exist{lines}"


async def _undo(starting: asyncio.Future[Process]) -> None:
    with suppress(AgentUnavailable):
        await (await starting).close(0.0)


async def _release(command: LaunchedCommand) -> None:
    for release in command.release:
        await in_thread(release, limited=False)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _prepared(command: Command, untrusted: Sequence[Path]) -> int:
    """Write the files of a command, and return the descriptor of its working folder. Raises AgentUnavailable."""
    try:
        folder = open_folder(command.cwd)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise AgentUnavailable(
            f"the working folder {command.cwd} does not exist; create it, or set the agent's cwd to one that does"
        ) from None
    except OSError as error:
        reason = "its path contains a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise AgentUnavailable(f"the working folder {command.cwd} cannot be opened: {reason}") from error
    try:
        _write_files(command, untrusted)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _write_files(command: Command, untrusted: Sequence[Path]) -> None:
    folders = (*((command.state,) if command.state else ()), *untrusted)
    for path, content in command.files.items():
        inside = next((folder for folder in folders if path.is_relative_to(folder)), None)
        try:
            _write_private(path, content, inside)
        except (OSError, OutsideFolders, NotRegularFile) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            if isinstance(error, OutsideFolders):
                reason = f"a symbolic link leads out of {inside}; remove it"
            raise AgentUnavailable(f"cannot write {path}: {reason or error}") from error


def _working_folder(descriptor: int) -> dict[str, Any]:
    """The arguments of `Popen` that start a process in an open folder."""
    if has_descriptor_paths():
        return {"cwd": f"/proc/self/fd/{descriptor}"}
    return {"preexec_fn": functools.partial(os.fchdir, descriptor)}


def _write_private(path: Path, content: bytes, inside: Path | None) -> None:
    """Write a file; with `inside`, through no link that leads out of this folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    if inside is not None:
        inside.mkdir(parents=True, exist_ok=True, mode=0o700)
        folders = ConfinedFolders((Path(os.path.realpath(inside)),))
        descriptor = folders.open(os.path.abspath(path), flags | os.O_NONBLOCK, 0o600, parents=True, folder_mode=0o700)
    else:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, flags, 0o600)
    with regular_file(descriptor, "wb") as file:
        file.write(content)
