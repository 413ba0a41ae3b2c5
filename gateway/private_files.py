"""Files and directories that only the user of this process can access: modes 0600 and 0700, whatever the umask is.

The modes of existing ones are corrected. What is in the files is the subject of the modules that write them.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gateway.errors import ConfigError

log = logging.getLogger(__name__)

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
OTHERS = 0o077
"""The permissions of the group and of all other users."""
TEMPORARY = "temporary"
"""The folder of a data directory for temporary files, which no agent can write but in a folder of its own there."""
PRIVATE_FOLDERS = (TEMPORARY, "state", "transcripts", "workspaces", "key-workspaces", "worktrees")
"""The folders of a data directory. Workspaces and worktrees belong to agents: the modes of what is in them are not changed."""
FOLDERS_OF_FILES = ("transcripts",)
"""Those whose files have mode 0600."""


def private_directory(path: Path) -> None:
    """Create a directory of mode 0700, with missing parents of that mode, or set the mode of one that exists.

    A change is logged as a warning. Raises ConfigError if other users keep access to it, because the file system has no modes or
    another user owns it, and OSError if it cannot be created.
    """
    missing = []
    folder = path
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        # Another process may create it at the same time.
        with suppress(FileExistsError):
            new.mkdir(mode=DIRECTORY_MODE)
            # The umask may have removed permissions of the owner.
            new.chmod(DIRECTORY_MODE)
    if not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    for change in _corrected(path, DIRECTORY_MODE):
        log.warning("%s", change)


def private_data_directory(data_dir: Path) -> list[str]:
    """Create a data directory if it is missing, and set the modes of it and of the files in it: 0700 and 0600.

    Return the changes, for the log. Raises ConfigError if it is a directory that users share, or if other users keep access,
    and OSError if it cannot be created or read.
    """
    if not data_dir.is_dir():
        private_directory(data_dir)
    changes = []
    for path, mode in _private_paths(data_dir):
        # A file may be removed meanwhile, as SQLite does with its write-ahead log.
        with suppress(FileNotFoundError):
            changes += _corrected(path, mode)
    return changes


def folders_of_sessions(data_dir: Path) -> list[Path]:
    """Return the folders with files that only sessions of a data directory can have left."""
    return [data_dir / name for name in ("state", "transcripts") if any((data_dir / name).glob("sess_*"))]


def accessible_to_others(data_dir: Path) -> dict[Path, int]:
    """Return what other users can access of a data directory: the paths whose modes its next use corrects, with their modes.

    Changes nothing. Raises OSError if the directory cannot be read.
    """
    found = {}
    for path, _ in _private_paths(data_dir):
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & OTHERS:
                found[path] = mode
    return found


def private_file(path: Path, flags: int) -> int:
    """Open a file with mode 0600, and create it if it is missing. Return the descriptor. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    # The umask may have removed permissions of the owner, and an older file may have another mode.
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != FILE_MODE:
        with suppress(OSError):
            os.fchmod(descriptor, FILE_MODE)
    return descriptor


def correct_file(path: Path) -> None:
    """Set the mode of a file, if it exists. A change is logged. Raises ConfigError if other users keep access to it."""
    if path.is_file():
        for change in _corrected(path, FILE_MODE):
            log.warning("%s", change)


def _private_paths(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """Yield the data directory, its folders and its files, each with its mode. Raises OSError if one cannot be read."""
    yield data_dir, DIRECTORY_MODE
    for entry in _entries(data_dir):
        if entry.is_dir(follow_symlinks=False):
            if entry.name in PRIVATE_FOLDERS:
                yield Path(entry.path), DIRECTORY_MODE
            if entry.name in FOLDERS_OF_FILES:
                yield from _files(_entries(Path(entry.path)))
        else:
            yield from _files([entry])


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _files(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[Path, int]]:
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path), FILE_MODE


def _corrected(path: Path, mode: int) -> list[str]:
    """Remove the permissions of others. Return the change, if there is one. Raises ConfigError if they stay."""
    found = path.stat()
    if not found.st_mode & OTHERS:
        return []
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        raise ConfigError(f"{path} is a directory that users share (sticky bit): choose a data directory below it")
    try:
        path.chmod(mode)
    except PermissionError as error:
        raise ConfigError(
            f"{path} is accessible to other users (mode {_mode(found)}), and its mode cannot be changed ({error.strerror}): "
            f"make this user its owner, or choose another data directory"
        ) from None
    if path.stat().st_mode & OTHERS:
        raise ConfigError(
            f"{path} is accessible to other users (mode {_mode(found)}), and its file system does not change modes: choose a "
            "data directory on another file system"
        )
    return [f"{path} was accessible to other users (mode {_mode(found)}); its mode is {mode:04o} now"]


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"
