"""What a service manager needs to know about the daemon, whichever manager it is, and what it reports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigError

FOLDERS = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
"""Variables that say where the daemon and its agents find and keep their files."""
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/var/run", "/private/tmp", "/private/var/tmp")
"""Folders whose entries vanish."""
OF_ONE_SHELL = "fnm_multishells"
"""The folder in which fnm has a link for each shell."""
CALL_TIMEOUT = 60.0
"""Seconds for a call of the service manager that does not start or stop the daemon."""


@dataclass(frozen=True)
class ServiceDefinition:
    """How the daemon is started: the command line and the variables, none of them secret; and how long its end takes at most."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    stop_seconds: int

    def option(self, name: str) -> Path | None:
        """Return the value of an option of the command that is a path; None without the option."""
        return Path(self.command[self.command.index(name) + 1]) if name in self.command[:-1] else None


@dataclass(frozen=True)
class ServiceState:
    """What the manager reports. `reason` is why the daemon does not run; `address` is its URL, if it has announced one."""

    running: bool
    at_login: bool
    pid: int | None = None
    address: str | None = None
    reason: str | None = None


def service_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the user's shell that the service gets: PATH, and those of folders.

    PATH is without folders in SHARED_FOLDERS: another user could create them once they have vanished. Links of version managers
    that belong to one shell are resolved.
    """
    kept: dict[str, None] = {}
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        if _is_in_shared(folder) or OF_ONE_SHELL in Path(folder).parts:
            folder = os.path.realpath(folder)
        # A relative folder would be another one for the service.
        if os.path.isabs(folder) and folder.isprintable() and not _is_in_shared(folder):
            kept[folder] = None
    given = {name: environ[name] for name in FOLDERS if environ.get(name, "").startswith("/")}
    return {"PATH": os.pathsep.join(kept), **given}


def _is_in_shared(folder: str) -> bool:
    return any(Path(folder).is_relative_to(shared) for shared in SHARED_FOLDERS)


def run(*command: str, timeout: float = CALL_TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Call a program of the service manager. Raises ConfigError if it cannot be called, or does not answer in time."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be called: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"`{' '.join(command)}` has not ended after {timeout:g} seconds") from None


def succeed(*command: str, timeout: float = CALL_TIMEOUT, accepted: int = 0) -> str:
    """Call a program of the service manager, and return what it prints. Raises ConfigError if it fails with another exit code."""
    called = run(*command, timeout=timeout)
    if called.returncode not in (0, accepted):
        raise ConfigError(f"`{' '.join(command)}` failed: {called.stderr.strip() or called.stdout.strip()}")
    return called.stdout
