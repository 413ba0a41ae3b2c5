"""Bytes to lines, and lines to JSON objects; pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

MAX_LINE = 64 * 1024 * 1024
EXCERPT = 400
"""Characters of a line that an error message quotes."""
_CONTROL = re.compile(
    # A title or another string for the terminal, to its end.
    rb"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    # A mode, a colour, a movement. No terminal has one that ends with `{`, which begins an object.
    rb"|\x1b\[[0-?]*[ -/]*[@-z|}~]"
    rb"|\x1b[ -/]*[0-z|}~]?"
    # Other control characters, and a byte order mark.
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xef\xbb\xbf"
)
_OBJECT = re.compile(r'\{\s*["}]')
_OF_A_LOG = re.compile(r"[\s:=,>('\"`\[]\Z")
"""The end of a text that speaks of the object behind it, as lines of a log do."""
_DECODER = json.JSONDecoder(strict=False)
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


@dataclass(frozen=True, slots=True)
class LinePart:
    """A part of a line: a JSON object, or what is between two objects."""

    text: str
    """The part as it is on the line, without control sequences."""
    message: dict[str, Any] | None = None
    """The object; None for other text."""


def line_parts(line: bytes) -> tuple[list[LinePart], bool]:
    """Return the JSON objects on a line that is not one, with the texts between them, and whether it has half an object.

    Control sequences, a byte order mark and invalid UTF-8 hide no object, and neither do a text that ends with a carriage return,
    such as a progress bar, or one right before it. An object that a text speaks of, as a line of a log does, is a part of that
    text. After half an object nothing is read. A line without an object is one part, as it is.
    """
    text = _CONTROL.sub(b"", line).decode("utf-8", "replace")
    parts: list[LinePart] = []
    end, is_cut = 0, False
    while (found := _OBJECT.search(text, end)) is not None:
        before, start = text[end : found.start()], found.start()
        begins = not before.strip() or before.rstrip(" \t").endswith("\r")
        if not begins and _OF_A_LOG.search(before):
            break
        try:
            value, after = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            is_cut = begins
            break
        parts += [LinePart(before.strip())] if before.strip() else []
        parts.append(LinePart(text[start:after], _replace_surrogates(value)))
        end = after
    rest = text[end:].strip() if parts else text_line(line)
    return [*parts, *([LinePart(rest)] if rest else [])], is_cut


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
