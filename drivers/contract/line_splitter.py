"""Bytes to lines, and lines to JSON objects; pure."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import from_json

MAX_LINE = 64 * 1024 * 1024
EXCERPT = 400
"""Characters of a line that an error message quotes."""
_CUT_WORD = re.compile(r"(?<![^\s\"',:;{}\[\]])[^\s\"',:;{}\[\]]*\Z")


class LineTooLong(Exception):
    """A line grew beyond the limit without a newline."""


class LineSplitter:
    """Cuts chunks at newlines. A long line is collected in parts, so its cost grows with its length only."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes after the last newline."""
        return self._held

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without newlines. Raises LineTooLong."""
        *whole, rest = chunk.split(b"\n")
        if whole and self._parts:
            whole[0] = b"".join((*self._parts, whole[0]))
            self._parts.clear()
            self._held = 0
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
        if self._held > self._limit or any(len(line) > self._limit for line in whole):
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        return whole

    def rest(self) -> bytes:
        """Take the bytes after the last newline."""
        held = b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        return held


def parse_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line, or None if the line holds anything else."""
    try:
        value = from_json(line)
    except ValueError:
        value = _parse_leniently(line)
    return value if isinstance(value, dict) else None


def _parse_leniently(line: bytes) -> object:
    # JavaScript's JSON.stringify escapes half of a surrogate pair where a CLI cut a text inside one; strict parsers
    # refuse it and UTF-8 cannot hold it, so it becomes U+FFFD.
    if b"\\ud" not in line and b"\\uD" not in line:
        return None
    try:
        return _replace_surrogates(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return value


def text_line(line: bytes) -> str:
    """A raw line as text; bytes that are not UTF-8 become U+FFFD."""
    return line.decode("utf-8", "replace").rstrip("\r")


def excerpt(line: bytes) -> str:
    """The beginning of a raw line, for an error message. It is cut between words: half a secret could not be redacted."""
    text = text_line(line[: 4 * EXCERPT]).strip()
    if len(text) <= EXCERPT:
        return text
    return _CUT_WORD.sub("", text[:EXCERPT]) + "…"
