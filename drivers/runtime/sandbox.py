"""The sandbox of processes: they write in certain folders only, and cannot read certain files. By Landlock, on Linux.

Agents run in it, and what the gateway itself runs where agents write (drivers/runtime/confined_program.py).

Landlock restricts a thread and all that it starts, without a helper and without privileges. It allows what rules list: a rule
for a folder is for everything below it, so that "all but one folder" is a rule for each entry of the folders above that one.
Documentation: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from drivers.contract.errors import AgentUnavailable
from drivers.runtime.confined_files import SEARCH, open_folder, open_place
from drivers.runtime.file_threads import in_thread_or_undone
from drivers.runtime.launcher import LaunchedCommand, Launcher
from drivers.runtime.process_tree import MARKER
from drivers.runtime.sandbox_exec import PREFIX

MIN_ABI = 3
"""Of Linux 6.2. Versions before do not restrict truncating files."""
SCOPES_ABI = 6
"""Of Linux 6.12: signals and abstract sockets of processes outside of the sandbox."""
MAX_RULES = 20_000
"""Entries of the folders above a hidden file."""

_CREATE_RULESET, _ADD_RULE, _PATH_BENEATH, _VERSION_FLAG = 444, 445, 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE = 1 << 6, 1 << 11, 1 << 14
_ALL = (1 << 15) - 1
"""All rights of ABI 3."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = _ALL & ~(_MAKE_CHAR | _MAKE_BLOCK)
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
"""The rights that a rule for something else than a folder may have."""
_SCOPES = 0b11
_PROGRAM = Path(__file__).with_name("sandbox_exec.py")
_OF_PYTHON = ("LD_LIBRARY_PATH",)
"""Variables that the gateway's own Python may need to start, with the gateway's values."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""What is read and written below /dev. `tty` is a process's own terminal. In `pts` are those of all programs of the account."""


@dataclass(frozen=True, slots=True)
class Sandbox(Launcher):
    """Files that processes may use: they write in `writable` and in `folders` only, and read all but `hidden`.

    A process that is launched also writes in its working folder and its state folder. All these folders may be below a hidden
    path, and are readable then; a symbolic link that leads there makes nothing writable. Writable paths that do not exist are
    left out, but the folders `created` are created, and are writable too. `folders` are real paths of files and folders that
    agents may replace: a path that has become a link, or has one in it, is refused. `readable` are such paths below hidden ones
    that are read only.
    """

    writable: tuple[Path, ...]
    hidden: tuple[Path, ...]
    created: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()

    @property
    def untrusted(self) -> tuple[Path, ...]:
        return (*self.created, *self.writable)

    async def launch(self, command: LaunchedCommand) -> LaunchedCommand:
        own = replace(
            self,
            created=(*self.created, *((command.state,) if command.state else ())),
            folders=(*self.folders, command.cwd, *command.writable),
        )
        ruleset = await in_thread_or_undone(own.ruleset, os.close)
        return replace(
            command,
            # It inherits the descriptor of the ruleset.
            argv=(sys.executable, "-I", "-S", str(_PROGRAM), str(ruleset), *command.argv),
            env={**_renamed(command.env), MARKER: command.marker},
            pass_fds=(*command.pass_fds, ruleset),
            confined=True,
        )

    def conflict(self) -> str | None:
        """Return why the sandbox is not possible: a writable path has a hidden one in it, or is a link to what is in one."""
        given = (*((path, path.resolve()) for path in (*self.writable, *self.created)), *((path, path) for path in self.folders))
        return next((problem for path, real in given if (problem := self._conflict_of(path, real))), None)

    def _conflict_of(self, path: Path, real: Path) -> str | None:
        for given in self.hidden:
            secret = given.resolve()
            if secret.is_relative_to(real):
                return f"agents could write in {path}, which contains {secret}"
            # An agent may have replaced a folder that it can write, below a hidden one or elsewhere.
            named = next((secret / path.relative_to(base) for base in (given, secret) if path.is_relative_to(base)), None)
            if real.is_relative_to(secret) and real != named:
                return f"agents could write in {real}, to which a symbolic link in {path} leads"
        return None

    def ruleset(self) -> int:
        """Return the descriptor of a Landlock ruleset. Blocks. Raises AgentUnavailable."""
        problem = unavailable() or self.conflict()
        if problem:
            raise AgentUnavailable(f"the sandbox cannot be had: {problem}")
        # The rights on files, none on the network, and the scopes, if the kernel has them.
        attributes = struct.pack("=QQQ", _ALL, 0, _SCOPES) if landlock_version() >= SCOPES_ABI else struct.pack("=Q", _ALL)
        ruleset = _system_call(_CREATE_RULESET, attributes, len(attributes), 0)
        try:
            # Names in folders are not secret, and programs list `/` and the user's folder.
            _allow(ruleset, Path("/"), _READ_DIR)
            for path in _all_but({path.resolve() for path in self.hidden}):
                with suppress(OSError):
                    _allow(ruleset, path, _READ, follow=False)
            for name in DEVICES:
                with suppress(OSError):
                    _allow(ruleset, Path("/dev", name), _WRITE)
            for path, rights in (*((path, _WRITE) for path in self.folders), *((path, _READ) for path in self.readable)):
                with suppress(FileNotFoundError):
                    _allow_place(ruleset, path, rights)
            for path in self.created:
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in (*self.writable, *self.created):
                with suppress(FileNotFoundError):
                    self._allow_writable(ruleset, path)
        except BaseException as error:
            os.close(ruleset)
            if isinstance(error, OSError):
                raise AgentUnavailable(f"the sandbox cannot be had: {error}") from error
            raise
        return ruleset

    def _allow_writable(self, ruleset: int, path: Path) -> None:
        """Add the rule of a writable path. Raises AgentUnavailable, OSError."""
        real = path.resolve()
        if problem := self._conflict_of(path, real):
            raise AgentUnavailable(f"the sandbox cannot be had: {problem}")
        # The path that was checked: none of its folders has become a link since.
        folder = open_folder(real.parent)
        try:
            _allow(ruleset, Path(real.name or "."), _WRITE, follow=False, folder=folder)
        finally:
            os.close(folder)


def _renamed(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with which the program of the sandbox runs a command that has the variables `env`."""
    own = {name: os.environ[name] for name in _OF_PYTHON if name in os.environ}
    return {**own, **{f"{PREFIX}{name}": value for name, value in env.items()}}


def unavailable() -> str | None:
    """Return why agents cannot have a sandbox on this machine; None if they can."""
    if sys.platform != "linux":
        return "it needs Landlock, which only Linux has"
    if landlock_version() < MIN_ABI:
        found = "has none" if landlock_version() < 1 else f"has version {landlock_version()}"
        return f"it needs Landlock version {MIN_ABI} (Linux 6.2 with `landlock` in the boot parameter `lsm`); this kernel {found}"
    return None


@functools.cache
def landlock_version() -> int:
    """The version of Landlock; 0 if the kernel does not have it, or a container forbids it."""
    try:
        return _system_call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def _all_but(hidden: set[Path]) -> Iterator[Path]:
    """Yield paths that together have everything below `/` but the hidden paths, devices and symbolic links."""
    skipped, above = hidden | {Path("/dev")}, {parent for path in hidden for parent in path.parents} | {Path("/")}
    folders, found = [Path("/")], 0
    while folders:
        folder = folders.pop()
        # What a folder has cannot be allowed if it cannot be listed.
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                found += 1
                if found > MAX_RULES:
                    raise AgentUnavailable(f"the sandbox cannot be had: the folders above {hidden} have too many entries")
                if path in skipped or entry.is_symlink():
                    continue
                if path in above:
                    folders.append(path)
                else:
                    yield path


def _allow_place(ruleset: int, path: Path, rights: int) -> None:
    """Add a rule for a file or folder with a real path. Raises AgentUnavailable if it has a link in it, OSError."""
    try:
        descriptor = open_place(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise AgentUnavailable(f"{path} has become a symbolic link, or is behind one") from error
        raise
    try:
        _add_rule(ruleset, descriptor, rights)
    finally:
        os.close(descriptor)


def _allow(ruleset: int, path: Path, rights: int, *, follow: bool = True, folder: int | None = None) -> None:
    """Add a rule for a path, relative to the descriptor `folder` if there is one. Raises OSError."""
    descriptor = os.open(path, SEARCH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), dir_fd=folder)
    try:
        _add_rule(ruleset, descriptor, rights)
    finally:
        os.close(descriptor)


def _add_rule(ruleset: int, descriptor: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    _system_call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)


def _system_call(number: int, *arguments: bytes | int | None) -> int:
    """Call the kernel, for which the C library has no function. Raises OSError."""
    result = int(_libc().syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
