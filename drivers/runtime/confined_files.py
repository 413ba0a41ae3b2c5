"""Opens files and folders inside given folders only, also while another process replaces folders by symbolic links.

A path is resolved by name first, which gives the error of a path that leads outside. Then the real path is opened without
following symbolic links: by `openat2` where the kernel has it (Linux 5.6), else component by component.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import logging
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 20
"""How often a path is resolved again because it contained a symbolic link when it was opened."""

REMOVALS = 3
"""How often a folder is removed again in which something was left, or was new."""

SEARCH: int = getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY))
"""The flag that opens a folder for access to its entries. It does not need the permission to list them."""
FOLDER = SEARCH | os.O_DIRECTORY | os.O_CLOEXEC
READABLE_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# <linux/openat2.h>; the number of the system call is that of every architecture but alpha.
OPENAT2 = 437
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
AT_FDCWD = -100


class OutsideFolders(Exception):
    """The path is not absolute, leads outside of the folders, or never was without a symbolic link while it was opened."""


class NotRegularFile(Exception):
    """The path is that of a FIFO, a folder or a device."""


class ConfinedFolders:
    """The folders in which paths of a client or of an agent may be.

    Parameters:
        folders: Absolute real paths. Where one of their components is a symbolic link by now, nothing in that folder is opened.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [str(folder) for folder in folders]

    def real_path(self, path: str) -> Path:
        """Return the path with symbolic links resolved. Raises OutsideFolders; ValueError for a path that cannot exist.

        The result may be replaced by a symbolic link at any time: open it without following one.
        """
        folder, relative = self._locate(path)
        return Path(folder, relative)

    def open(self, path: str, flags: int, mode: int = 0o666, *, parents: bool = False, folder_mode: int = 0o777) -> int:
        """Open a file as `os.open` does and return its descriptor. Raises OutsideFolders, OSError, ValueError.

        Parameters:
            parents: Whether to create the folders that the path needs, with `folder_mode`.
        """

        def opened(folder: int, relative: str) -> int:
            if parents:
                _make_parents(folder, relative, folder_mode)
            return _open_beneath(folder, relative, flags, mode)

        return self._in_folder(path, opened)

    def open_folder(self, path: str) -> int:
        """Open a folder and return its descriptor, for `fchdir` and `dir_fd` only. Raises as `open` does."""
        return self._in_folder(path, lambda folder, relative: _open_beneath(folder, relative, FOLDER, 0))

    def entries(self, path: str, *, create_mode: int | None = None) -> Entries:
        """Open a folder for access to what is in it. Raises as `open` does.

        Parameters:
            create_mode: The mode with which the folder, and those above it, are created if they are missing.
        """

        def opened(folder: int, relative: str) -> int:
            if create_mode is not None:
                _make_parents(folder, f"{relative}/.", create_mode)
            return _open_beneath(folder, relative, READABLE_FOLDER, 0)

        return Entries(self._in_folder(path, opened))

    def exists(self, path: str) -> bool:
        """Whether the path exists. Raises OutsideFolders, unless it is inside at this moment, OSError, ValueError."""
        return self._in_folder(path, _exists_beneath)

    def _in_folder(self, path: str, use: Callable[[int, str], T]) -> T:
        for _ in range(ATTEMPTS):
            try:
                folder, relative = self._locate(path)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    # A link of the path was replaced by a folder while it was read.
                    continue
                raise
            try:
                with _opened(folder) as descriptor:
                    return use(descriptor, relative)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EXDEV, errno.EAGAIN):
                    raise OSError(error.errno, error.strerror, path) from None
        raise OutsideFolders(f"{path!r} contains a symbolic link to itself, or one that was created while it was opened")

    def _locate(self, path: str) -> tuple[str, str]:
        """Return the folder that a path leads to, and the real path relative to it."""
        if not os.path.isabs(path):
            raise OutsideFolders(f"{path!r} is not an absolute path")
        real = os.path.realpath(path)
        for folder in self._folders:
            if real == folder:
                return folder, "."
            if real.startswith(folder.rstrip("/") + "/"):
                return folder, os.path.relpath(real, folder)
        others = f" or in {', '.join(self._folders[1:])}" if self._folders[1:] else ""
        raise OutsideFolders(f"{path!r} is not in the working folder {self._folders[0]}{others}")


class Entries:
    """What is in an open folder, by name. A symbolic link among the entries is one of them: it is not followed."""

    def __init__(self, descriptor: int) -> None:
        self._folder = descriptor

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)

    def names(self) -> list[str]:
        """Return the names of all entries. Raises OSError."""
        return os.listdir(self._folder)

    def size(self, name: str) -> int:
        """Return the size of an entry in bytes. Raises OSError."""
        return os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_size

    def open(self, name: str, flags: int) -> int:
        """Open a file and return its descriptor. Raises OSError, also for a symbolic link."""
        return _open_entry(self._folder, name, flags)

    def link(self, name: str, target: Path) -> None:
        """Create a symbolic link, unless there is an entry of that name. Raises OSError."""
        with suppress(FileExistsError):
            os.symlink(target, name, dir_fd=self._folder)

    def rename(self, name: str, new: str) -> None:
        """Rename an entry, in the place of one that has the name already. Raises OSError."""
        os.rename(name, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, name: str) -> None:
        """Remove an entry that is no folder. Raises OSError."""
        os.unlink(name, dir_fd=self._folder)


def read_file(path: Path, limit: int, *, inside: Path | None = None) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises OSError, NotRegularFile for any other kind of file and a longer one, and OutsideFolders.

    Parameters:
        inside: The folder that the path, with links resolved, must not leave; None follows links anywhere.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    if inside is None:
        descriptor = os.open(path, flags)
    else:
        descriptor = ConfinedFolders((Path(os.path.realpath(inside)),)).open(os.path.abspath(path), flags)
    with regular_file(descriptor, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise NotRegularFile(f"it has more than {limit} bytes")
    return content


def open_folder(path: Path) -> int:
    """Open a folder by its real path and return its descriptor, for `fchdir` and `dir_fd` only.

    Raises OSError, with ELOOP where a component of the path is a symbolic link; ValueError for a path that cannot exist.
    """
    return _open_real(path, FOLDER)


def open_place(path: Path) -> int:
    """Open a file or folder by its real path and return its descriptor, which reads nothing. Raises as `open_folder` does."""
    descriptor = _open_real(path, SEARCH | os.O_CLOEXEC)
    if stat.S_ISLNK(os.fstat(descriptor).st_mode):
        # O_PATH opens the link itself where there is no openat2.
        os.close(descriptor)
        raise _link_error(str(path))
    return descriptor


def identity(path: Path) -> tuple[int, int]:
    """Return the device and the inode of a file or folder by its real path. Raises as `open_folder` does."""
    descriptor = open_place(path)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return found.st_dev, found.st_ino


def make_folder(base: Path, relative: str) -> None:
    """Create a folder, and those above it, in a folder with a real path. Raises OSError, with ELOOP for a symbolic link."""
    descriptor = open_folder(base)
    try:
        with _parent(descriptor, [name for name in relative.split("/") if name not in ("", ".")], create=0o777):
            pass
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, also where folders in it have lost the owner's rights. A missing one is no error.

    An agent's process may still change what is in it: no link in it is followed. Only two folders of it are open at a time,
    however deep it is: what is in a folder of it is moved up before. Raises OSError if something is left after all attempts.
    """
    try:
        parent = os.open(path.parent, FOLDER)
    except FileNotFoundError:
        return
    try:
        for attempt in range(REMOVALS):
            try:
                with suppress(FileNotFoundError):
                    _remove_entry(parent, path.name)
                return
            except OSError as error:
                if attempt == REMOVALS - 1:
                    raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(parent)


def discard_tree(path: Path) -> None:
    """Remove a folder as `remove_tree` does. What cannot be removed stays, and is in the log."""
    try:
        remove_tree(path)
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)


def _remove_entry(folder: int, name: str) -> None:
    if not _is_folder(folder, name):
        os.unlink(name, dir_fd=folder)
        return
    top = _open_with_rights(folder, name)
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=folder)


def _empty(top: int) -> None:
    """Remove all that is in a folder. Raises the last OSError, after everything else is removed."""
    names, failure = _names(top), None
    while names:
        name = names.pop()
        try:
            if _is_folder(top, name):
                names += _flatten(top, name)
            else:
                os.unlink(name, dir_fd=top)
        except FileNotFoundError:
            pass
        except OSError as error:
            failure = error
    if failure is not None:
        raise failure


def _flatten(top: int, name: str) -> list[str]:
    """Remove a folder in another, after the folders in it are moved to that other one. Returns their new names."""
    moved, folder = list[str](), _open_with_rights(top, name)
    try:
        for inner in _names(folder):
            if _is_folder(folder, inner):
                # To move a folder takes the right to write in it.
                os.close(_open_with_rights(folder, inner))
                moved.append(f".{uuid.uuid4().hex}")
                os.rename(inner, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)
    return moved


def _is_folder(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _names(folder: int) -> list[str]:
    readable = os.open(".", READABLE_FOLDER, dir_fd=folder)
    try:
        return os.listdir(readable)
    finally:
        os.close(readable)


def _open_with_rights(folder: int, name: str) -> int:
    """Open a folder in another, and give its owner all rights to it."""
    opened = _open_entry(folder, name, FOLDER)
    try:
        if has_descriptor_paths():
            # A descriptor of O_PATH cannot be given to fchmod.
            os.chmod(f"/proc/self/fd/{opened}", stat.S_IRWXU)
        else:
            os.fchmod(opened, stat.S_IRWXU)
    except BaseException:
        os.close(opened)
        raise
    return opened


@functools.cache
def has_descriptor_paths() -> bool:
    """Whether an open folder has a path by its descriptor. Linux has it where /proc is mounted; macOS does not have it."""
    return os.path.isdir("/proc/self/fd")


def _open_real(path: Path, flags: int) -> int:
    if has_openat2():
        return _openat2(AT_FDCWD, str(path), flags, 0, RESOLVE_NO_SYMLINKS)
    start = os.open("/" if path.is_absolute() else ".", FOLDER)
    try:
        return _walk(start, str(path).strip("/") or ".", flags, 0)
    finally:
        os.close(start)


def regular_file(descriptor: int, mode: Literal["rb", "wb", "r+b"]) -> BinaryIO:
    """Return the file of a descriptor, which is opened with O_NONBLOCK: a FIFO would block. Closes it if it raises.

    Raises NotRegularFile for a FIFO, a folder or a device.
    """
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularFile("not a regular file")
        return open(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise


@functools.cache
def has_openat2() -> bool:
    """Whether the kernel has `openat2` and permits it: kernels before 5.6 do not have it, some containers forbid it."""
    if not hasattr(os, "O_PATH"):
        return False
    try:
        os.close(_openat2(AT_FDCWD, "/", FOLDER, 0, RESOLVE_NO_SYMLINKS))
    except OSError:
        return False
    return True


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    descriptor = open_folder(Path(folder))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_beneath(folder: int, relative: str, flags: int, mode: int) -> int:
    if has_openat2():
        resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
        return _openat2(folder, relative, flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, resolve)
    return _walk(folder, relative, flags, mode)


def _walk(folder: int, relative: str, flags: int, mode: int) -> int:
    """Open a path component by component. Raises OSError with ELOOP for a symbolic link."""
    *parents, name = relative.split("/")
    with _parent(folder, parents) as parent:
        return _open_entry(parent, name, flags, mode)


def _open_entry(folder: int, name: str, flags: int, mode: int = 0) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    except NotADirectoryError:
        # Linux has this error for a symbolic link where O_DIRECTORY is set.
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise _link_error(name) from None
        raise


@contextmanager
def _parent(folder: int, names: Sequence[str], *, create: int | None = None) -> Iterator[int]:
    """The descriptor of a folder beneath another. Missing folders are created with the mode `create`, where it is given."""
    descriptor = os.dup(folder)
    try:
        for name in names:
            if create is not None:
                with suppress(FileExistsError):
                    os.mkdir(name, create, dir_fd=descriptor)
            descriptor, previous = _open_entry(descriptor, name, FOLDER), descriptor
            os.close(previous)
        yield descriptor
    finally:
        os.close(descriptor)


def _make_parents(folder: int, relative: str, mode: int) -> None:
    with _parent(folder, relative.split("/")[:-1], create=mode):
        pass


def _exists_beneath(folder: int, relative: str) -> bool:
    *parents, name = relative.split("/")
    try:
        with _parent(folder, parents) as parent:
            if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise _link_error(name)
    except FileNotFoundError:
        return False
    return True


def _link_error(name: str) -> OSError:
    return OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


@functools.cache
def _syscall() -> Any:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function


def _openat2(folder: int, path: str, flags: int, mode: int, resolve: int) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        # The system call would take the part before it.
        raise ValueError("embedded null byte")
    how = _OpenHow(flags, mode, resolve)
    while True:
        descriptor: int = _syscall()(
            ctypes.c_long(OPENAT2),
            ctypes.c_long(folder),
            ctypes.c_char_p(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)
