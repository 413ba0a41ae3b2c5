"""The files of the console's page, from the package: read and compressed once, and again after a change."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
"""The media types by suffix. Files with another suffix are plain text."""
_COMPRESSED = frozenset((".html", ".js", ".css", ".json", ".svg", ".webmanifest", ""))
_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""Paths that are looked up: no part begins with a dot."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file in memory. `compressed` is its content by gzip; None where that is not smaller."""

    media_type: str
    content: bytes
    compressed: bytes | None
    etag: str


class StaticFiles:
    """Reads files of a folder by their relative paths."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._read: dict[str, tuple[tuple[int, int], StaticFile]] = {}

    def find(self, path: str) -> StaticFile | None:
        """Return a file; None if there is none of this path. It blocks for a look at the file system."""
        if not _PATH.fullmatch(path):
            return None
        file = self._root / path
        try:
            status = file.stat()
            # A checkout of the project may be edited while the daemon runs.
            version = (status.st_mtime_ns, status.st_size)
            known = self._read.get(path)
            if known is None or known[0] != version:
                known = self._read[path] = version, _static_file(file)
        except (OSError, ValueError):
            return None
        return known[1]


def _static_file(file: Path) -> StaticFile:
    content = file.read_bytes()
    compressed = gzip.compress(content, 9, mtime=0) if file.suffix in _COMPRESSED else content
    return StaticFile(
        TYPES.get(file.suffix, "text/plain; charset=utf-8"),
        content,
        compressed if len(compressed) < len(content) else None,
        hashlib.sha256(content).hexdigest()[:32],
    )
