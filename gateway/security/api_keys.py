"""API keys: the default keys of the configuration, and named keys, one for each client, which can be revoked one by one.

A named key is a file in the data directory whose name is the key's hash. The daemon looks for the file at each request, so that
`portico key add` and `remove` take effect at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.config import AGENT_NAME, Settings
from gateway.errors import ConfigError, InvalidSettings
from gateway.private_files import FILE_MODE, private_directory
from gateway.security.secret_files import read_or_create

log = logging.getLogger(__name__)

USED_AT_INTERVAL = 60.0
"""The last use of a key is recorded at most once in so many seconds."""


def default_api_keys(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return PORTICO_API_KEY and the keys of the configuration. Without either, return the key in the data directory.

    That key is generated at the first call. Raises InvalidSettings without either on a node of a cluster: each node would have
    another one.
    """
    given = [*settings.auth.keys]
    if from_env := environ.get("PORTICO_API_KEY", "").strip():
        given.insert(0, from_env)
    if not given and settings.node.address:
        raise InvalidSettings(
            "a node needs a default key that all nodes have: set PORTICO_API_KEY, or auth.keys in the configuration, to the same "
            "on each of them; make one with `openssl rand -hex 32`"
        )
    return tuple(given) or (read_or_create(settings.data_dir / "api-key", _random_key),)


def new_key(name: str) -> str:
    """Return a random key for a client. Raises ConfigError if the name cannot be one."""
    if not re.fullmatch(AGENT_NAME, name):
        raise ConfigError("a key's name is letters, digits, '.', '_' and '-', 64 at most, and starts with a letter or digit")
    return _random_key()


def name_in_use(used: str) -> ConfigError:
    """Return the error for a name that differs at most in case from that of a key."""
    return ConfigError(f"there is a key {used!r} already; take another name, or `portico key remove {used}` first")


def no_key(name: str) -> ConfigError:
    """Return the error for a name that no key has."""
    return ConfigError(f"there is no key {name!r}; `portico key list` shows those there are")


def _random_key() -> str:
    return "pk-" + secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class NamedKey:
    """A named key. Times are seconds since the epoch; `used_at` is None before the first use."""

    name: str
    created_at: float
    used_at: float | None


class NamedKeys:
    """The named keys of a data directory. The daemon and the command line use the same files at the same time."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "keys"

    def add(self, name: str) -> str:
        """Create a key and return it; only its hash is stored. Raises ConfigError if the name is in use or cannot be one."""
        key = new_key(name)
        private_directory(self._folder.parent)
        private_directory(self._folder)
        with self._lock():
            # Names of workspaces, which some file systems compare without case.
            for used in [known.name for _, known in self._files() if known.name.casefold() == name.casefold()]:
                raise name_in_use(used)
            # Written to a temporary file of mode 0600 and renamed: another process never reads half of it.
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".")
            os.fchmod(descriptor, FILE_MODE)
            with open(descriptor, "w") as file:
                json.dump({"name": name, "created_at": time.time()}, file)
            os.utime(temporary, (0, 0))
            os.replace(temporary, self._file(key))
        return key

    def remove(self, name: str) -> None:
        """Revoke a key. Raises ConfigError if no key has this name."""
        for file, known in self._files():
            if known.name == name:
                return file.unlink(missing_ok=True)
        raise no_key(name)

    def all(self) -> list[NamedKey]:
        """Return all keys, the oldest first. Damaged files are skipped with a warning."""
        return sorted((known for _, known in self._files()), key=lambda known: known.created_at)

    def name_of(self, key: str) -> str | None:
        """Return the name of a valid key and record its use; None for any other key."""
        # A look-up by hash leaks nothing by its timing: only the key itself gives a chosen hash.
        file = self._file(key)
        known = _read(file)
        if known is None:
            return None
        now = time.time()
        if known.used_at is None or now - known.used_at > USED_AT_INTERVAL:
            with suppress(OSError):
                os.utime(file, (now, now))
        return known.name

    def has(self, name: str, digest: str) -> bool:
        """Whether there is a key of this name and of this SHA-256 in hexadecimal digits."""
        found = _read(self._folder / digest)
        return found is not None and found.name == name

    def stored(self) -> list[tuple[str, NamedKey]]:
        """Return the SHA-256 in hexadecimal digits of each key, with the key, the oldest first."""
        return sorted(((file.name, known) for file, known in self._files()), key=lambda found: found[1].created_at)

    def forget(self, digest: str) -> None:
        """Delete the file of a key that is stored elsewhere from now on."""
        (self._folder / digest).unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, NamedKey]]:
        for file in self._folder.glob("[0-9a-f]*"):
            if known := _read(file):
                yield file, known

    def _file(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _read(file: Path) -> NamedKey | None:
    try:
        with open(file) as opened:
            data, used_at = json.load(opened), os.fstat(opened.fileno()).st_mtime
        return NamedKey(str(data["name"]), float(data["created_at"]), used_at or None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError):
        # Without the error's text, which may quote the file.
        log.warning("the key file %s is damaged or cannot be read, and is ignored: delete it, and create the key again", file)
        return None
