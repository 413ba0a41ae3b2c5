"""claude's own session file, written to seed a session with a history, and the name of the folder that it is kept in."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import to_json

from drivers.claude.content import native_messages
from drivers.contract.messages import Message

BASE36_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
LONGEST_FOLDER = 200
NO_MODEL = "<synthetic>"
"""The CLI's own name for the model of messages that no model has written. claude 2.1.148 to 2.1.202 never get ready with an
assistant record without a `model`; with a real name, a resumed session changes to that model (2.1.176 and 2.1.330)."""


def session_file(history: Sequence[Message], ids: Sequence[str], timestamp: str) -> bytes:
    """The CLI's own session file for a history: one line a message, each naming the one before.

    `timestamp` and the chain of `parentUuid` are needed: claude 2.1.329 ignores files without the one, records without
    the other. claude 2.1.197 joins assistant messages that have the same `id`, or none. `ids` are as many fresh UUIDs as there
    are messages, or more.
    """
    lines: list[bytes] = []
    parent: str | None = None
    for message, uuid in zip(native_messages(history), ids, strict=False):
        if message["role"] == "assistant":
            content = message["content"]
            content = [{"type": "text", "text": content}] if isinstance(content, str) else content
            message = {**message, "id": uuid, "model": NO_MODEL, "content": content}
        lines.append(
            to_json({"type": message["role"], "message": message, "uuid": uuid, "parentUuid": parent, "timestamp": timestamp})
        )
        parent = uuid
    return b"\n".join(lines) + b"\n"


def project_folder(cwd: str) -> str:
    """The CLI's folder name for the sessions of a working folder (its real path): what is not a letter or digit is `-`.

    A long name is cut, and the hash of the path put behind it (measured with claude 2.1.329).
    """
    name = "".join(c if c.isascii() and c.isalnum() else "-" * (len(c.encode("utf-16-le")) // 2) for c in cwd)
    return name if len(name) <= LONGEST_FOLDER else f"{name[:LONGEST_FOLDER]}-{_hash36(cwd)}"


def _hash36(text: str) -> str:
    """JavaScript's usual 31-fold string hash over UTF-16 units, as 32 signed bits, its amount in base 36."""
    units, value = text.encode("utf-16-le"), 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + low + 256 * high) & 0xFFFFFFFF
    rest, digits = min(value, 2**32 - value), ""
    while rest:
        rest, digit = divmod(rest, 36)
        digits = BASE36_DIGITS[digit] + digits
    return digits or "0"
