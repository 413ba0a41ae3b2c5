"""Checks of the data directory: who can access it, whether it can be written, and the key in it."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.config import Settings
from gateway.diagnosis.report import Check
from gateway.errors import InvalidSettings
from gateway.observability.health import DISK_FULL, check_space, is_disk_full
from gateway.private_files import OTHERS, accessible_to_others
from gateway.security.loopback import check_key_lengths

KEY_FILE = "api-key"
LOW_SPACE = 256 * 1024 * 1024
"""Free bytes below which the disk is soon full: a session with large tool results takes some MiB."""
MAX_PATHS = 8
"""Paths that a command names one by one."""


def check_data_folder(folder: Path, portico: str) -> Check:
    """Changes nothing. `portico` is as in `Subject`. Blocks."""
    name = "Data folder"
    own = '"$(id -un)"'
    if not folder.exists():
        parent = next(path for path in folder.parents if path.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            text = f"{folder} does not exist, and cannot be made in {parent}"
            return Check(name=name, status="problem", text=text, command=f"sudo install -d -m 700 -o {own} {_quoted([folder])}")
        return Check(name=name, status="info", text=f"{folder} does not exist; the first start makes it")
    if not folder.is_dir():
        moved = folder.with_name(folder.name + ".old")
        text = f"{folder} is not a folder"
        return Check(name=name, status="problem", text=text, command=f"mv {_quoted([folder, moved])}")
    found = folder.stat()
    if found.st_uid != os.geteuid():
        text = f"{folder} belongs to another user"
        return Check(name=name, status="problem", text=text, command=f"sudo chown -R {own} {_quoted([folder])}")
    if found.st_mode & stat.S_ISVTX and found.st_mode & OTHERS:
        text = f"{folder} is a folder that users share (sticky bit); use one below it"
        return Check(
            name=name,
            status="problem",
            text=text,
            command=f"{portico.format('serve')} --data-dir {_quoted([folder / 'portico'])}",
        )
    if found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        text = f"{folder} has mode {_mode(found.st_mode)}: its owner cannot use it"
        return Check(name=name, status="problem", text=text, command=f"chmod 700 {_quoted([folder])}")
    open_to_others = {path: mode for path, mode in accessible_to_others(folder).items() if path != folder / KEY_FILE}
    if open_to_others:
        first, mode = next(iter(open_to_others.items()))
        more = f" and {len(open_to_others) - 1} more" if len(open_to_others) > 1 else ""
        text = f"{first} (mode {_mode(mode)}){more}: other users can access it"
        return Check(name=name, status="problem", text=text, command=_made_private(folder, list(open_to_others)))
    return Check(name=name, status="ok", text=f"{folder} (mode {_mode(found.st_mode)}, private)")


def check_disk(folder: Path) -> Check:
    """Write a temporary file, and remove it. Blocks."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    largest = f"du -xh {_quoted([there])} | sort -h | tail"
    try:
        free = shutil.disk_usage(there).free
        if folder.is_dir():
            check_space(folder)
    except OSError as error:
        if is_disk_full(error):
            return Check(name="Disk", status="problem", text=f"{DISK_FULL} in {there}; delete files", command=largest)
        mount = next(path for path in (there, *there.parents) if path.is_mount())
        remounted = f"sudo mount -o remount,rw {_quoted([mount])}"
        command = remounted if error.errno == errno.EROFS else f"ls -ld {_quoted([there])}"
        return Check(name="Disk", status="problem", text=f"{there} cannot be written ({error.strerror})", command=command)
    if free < LOW_SPACE:
        return Check(name="Disk", status="warning", text=f"only {_size(free)} are free in {there}", command=largest)
    return Check(name="Disk", status="ok", text=f"{_size(free)} free")


def check_key(settings: Settings, environ: Mapping[str, str], portico: str) -> Check:
    """Where the default key is from, and whether other users can read it. `portico` is as in `Subject`. Blocks."""
    create = portico.format("key")
    if short := _too_short(settings, environ):
        return Check(name="Key", status="problem", text=short, command=f"{portico.format('serve')} --host 127.0.0.1")
    if environ.get("PORTICO_API_KEY", "").strip():
        return Check(name="Key", status="ok", text="PORTICO_API_KEY of the environment")
    if settings.auth.keys:
        return _check_file_of_keys(settings)
    if settings.node.address:
        text = "a node of a cluster needs a default key that all nodes have: set PORTICO_API_KEY or auth.keys on each of them"
        return Check(name="Key", status="problem", text=text)
    file = settings.data_dir / KEY_FILE
    try:
        found = file.stat()
        empty = not file.read_text().strip()
    except FileNotFoundError:
        return Check(name="Key", status="info", text=f"{file} does not exist; the first start makes it", command=create)
    except OSError as error:
        command = f'sudo chown "$(id -un)" {_quoted([file])}; chmod 600 {_quoted([file])}'
        return Check(name="Key", status="problem", text=f"{file} cannot be read ({error.strerror})", command=command)
    if found.st_mode & OTHERS:
        text = f"{file} has mode {_mode(found.st_mode)}: other users can read the key"
        return Check(name="Key", status="problem", text=text, command=f"chmod 600 {_quoted([file])}")
    if empty:
        return Check(name="Key", status="info", text=f"{file} is empty; the next start writes a key into it", command=create)
    return Check(name="Key", status="ok", text=f"{file} (mode {_mode(found.st_mode)}, private)")


def _too_short(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Why a start refuses the length of a key; None if it does not, or if the file of the key cannot be read."""
    with suppress(OSError):
        try:
            check_key_lengths(settings.server.host, existing_keys(settings, environ))
        except InvalidSettings as error:
            return str(error)
    return None


def _check_file_of_keys(settings: Settings) -> Check:
    text = f"auth.keys of the configuration ({len(settings.auth.keys)})"
    if settings.file is not None and (mode := settings.file.stat().st_mode) & OTHERS:
        text += f"; {settings.file} has mode {_mode(mode)}: other users can read them"
        return Check(name="Key", status="warning", text=text, command=f"chmod 600 {_quoted([settings.file])}")
    return Check(name="Key", status="ok", text=text)


def check_store_password(file: Path) -> Check:
    """Whether other users can read a configuration file with a password in `store.url`. Blocks. Raises OSError."""
    name, mode = "Store password", file.stat().st_mode
    if mode & OTHERS:
        text = f"{file} has mode {_mode(mode)}: other users can read the password in store.url"
        return Check(name=name, status="warning", text=text, command=f"chmod 600 {_quoted([file])}")
    return Check(name=name, status="ok", text=f"in {file} (mode {_mode(mode)}, private)")


def existing_keys(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """Return the default keys that there are: creates none. Blocks. Raises OSError."""
    given = [key for key in (environ.get("PORTICO_API_KEY", "").strip(), *settings.auth.keys) if key]
    file = settings.data_dir / KEY_FILE
    return given or ([key] if file.exists() and (key := file.read_text().strip()) else [])


def _made_private(folder: Path, paths: Sequence[Path]) -> str:
    if len(paths) <= MAX_PATHS:
        return f"chmod go-rwx {_quoted(paths)}"
    # What is in workspaces belongs to the agents.
    kept = f"! -path {_quoted([folder / 'workspaces/*'])} ! -path {_quoted([folder / 'key-workspaces/*'])} ! -type l"
    return f"find {_quoted([folder])} -maxdepth 2 {kept} -exec chmod go-rwx {{}} +"


def _quoted(paths: Sequence[Path]) -> str:
    return " ".join(shlex.quote(str(path)) for path in paths)


def _mode(mode: int) -> str:
    return f"{stat.S_IMODE(mode):04o}"


def _size(size: int) -> str:
    for unit in ("KiB", "MiB"):
        size /= 1024  # type: ignore[assignment]
        if size < 1024:
            return f"{size:.0f} {unit}"
    return f"{size / 1024:.1f} GiB"
