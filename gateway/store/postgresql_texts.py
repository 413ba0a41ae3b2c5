"""Texts with NUL characters, which PostgreSQL refuses and SQLite stores. They are escaped on the way to the server.

U+FDD0 is a noncharacter, which Unicode reserves for the internal use of programs. It begins an escape sequence.
"""

from __future__ import annotations

from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader

ESCAPE = "\ufdd0"
_ESCAPE_BYTES = ESCAPE.encode()


def escaped(text: str) -> str:
    """Returns a text without NUL characters, which `unescaped` reverses. Most texts are as before."""
    if "\0" in text or ESCAPE in text:
        return text.replace(ESCAPE, f"{ESCAPE}1").replace("\0", f"{ESCAPE}0")
    return text


def unescaped(text: str) -> str:
    """Returns the text that `escaped` was given."""
    return text.replace(f"{ESCAPE}0", "\0").replace(f"{ESCAPE}1", ESCAPE)


class TextDumper(Dumper):
    """Encodes a text for the server. Its type is left to the statement."""

    def dump(self, obj: str) -> bytes:
        return escaped(obj).encode()


class TextLoader(Loader):
    """Decodes a text of the server."""

    def load(self, data: Buffer) -> str:
        raw = bytes(data)
        return unescaped(raw.decode()) if _ESCAPE_BYTES in raw else raw.decode()
