"""Named keys: one for each client, so that one can be taken back. Each is a file, named for the key's hash.

A file is looked for at each request, so that a key is in force, or no longer, from the moment the command line says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.security.secret_files import read_or_create

log = logging.getLogger(__name__)

USED_EVERY = 60.0
"""Seconds for which one note of a key's use is enough."""


def default_api_keys(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return PORTICO_API_KEY and the keys of the configuration. Without either, return the key in the data directory.

    That key is generated at the first call.
    """
    given = [*settings.auth.keys]
    if from_env := environ.get("PORTICO_API_KEY", "").strip():
        given.insert(0, from_env)
    return tuple(given) or (read_or_create(settings.data_dir / "api-key", lambda: "pk-" + secrets.token_urlsafe(32)),)


@dataclass(frozen=True, slots=True)
class NamedKey:
    """What is known of a key. Times are seconds since the epoch; `used_at` is None before its first use."""

    name: str
    created_at: float
    used_at: float | None


class NamedKeys:
    """The keys of a data directory, as the daemon and the command line share them."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "keys"

    def add(self, name: str) -> str:
        """Make a key; what is kept of it is its hash. Raises ConfigError for a name that is taken."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = "pk-" + secrets.token_urlsafe(32)
        with self._alone():
            if any(known.name == name for _, known in self._files()):
                raise ConfigError(f"there is a key {name!r} already; take another name, or `portico key remove {name}` first")
            # Whole or not at all, and its owner's only.
            descriptor, fresh = tempfile.mkstemp(dir=self._folder, prefix=".")
            with open(descriptor, "w") as file:
                json.dump({"name": name, "created_at": time.time()}, file)
            os.utime(fresh, (0, 0))
            os.replace(fresh, self._file(key))
        return key

    def remove(self, name: str) -> None:
        """Take a key back. Raises ConfigError if there is none of that name."""
        for file, known in self._files():
            if known.name == name:
                return file.unlink(missing_ok=True)
        raise ConfigError(f"there is no key {name!r}; `portico key list` shows those there are")

    def all(self) -> list[NamedKey]:
        """All keys, the oldest first. Files that are damaged are left out, with a warning each."""
        return sorted((known for _, known in self._files()), key=lambda known: known.created_at)

    def name_of(self, key: str) -> str | None:
        """The name of a key that is in force, whose use is noted; None for any other."""
        # A look-up by hash tells an observer nothing of the keys there are: who can steer the hash has the key.
        file = self._file(key)
        known = _read(file)
        if known is None:
            return None
        now = time.time()
        if known.used_at is None or now - known.used_at > USED_EVERY:
            with suppress(OSError):
                os.utime(file, (now, now))
        return known.name

    def _files(self) -> Iterator[tuple[Path, NamedKey]]:
        for file in self._folder.glob("[0-9a-f]*"):
            if known := _read(file):
                yield file, known

    def _file(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _read(file: Path) -> NamedKey | None:
    try:
        with open(file) as opened:
            said, used = json.load(opened), os.fstat(opened.fileno()).st_mtime
        return NamedKey(str(said["name"]), float(said["created_at"]), used or None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError):
        # Not the error's own words: they may quote what the file holds.
        log.warning("the key file %s is damaged or cannot be read, so it is no key: delete it, and make the key again", file)
        return None
