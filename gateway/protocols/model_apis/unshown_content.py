"""Content that agents do not take, as text: a client sends its whole conversation again, and cannot take a part of it back. Pure.

The text of a document is text. Of everything else the agent is told that it is not shown.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

TEXTS = ("text/", "application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")
"""How the media types of text begin."""


def document_text(data: str, media_type: str, title: str | None) -> str:
    """Return the text of a document that is given as base64, or that it is not shown."""
    if media_type.startswith(TEXTS):
        try:
            return named_text(base64.b64decode(data, validate=True).decode(), title)
        except (binascii.Error, UnicodeDecodeError):
            pass
    return not_shown(f"document of the type {media_type or 'unknown'}", title)


def data_uri_text(uri: str, title: str | None) -> str:
    """Return the text of a document that is given as a `data:` URI or as base64, or that it is not shown."""
    head, comma, data = uri.partition(",")
    if not (comma and head.startswith("data:")):
        return not_shown("document", title)
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    return document_text(data, media_type, title) if encoding.endswith("base64") else not_shown("document", title)


def named_text(text: str, title: str | None) -> str:
    """Return the text of a document with its title before it."""
    return f"{title}:\n\n{text}" if title else text


def not_shown(what: str, title: str | None = None) -> str:
    """Return what an agent gets instead of content that it does not take."""
    return f"[{what[:80]}{f' named {title[:200]!r}' if title else ''}, which is not shown here]"


def file_text(file: Mapping[str, Any]) -> str:
    """Return the text of a file part of OpenAI's APIs, or that it is not shown."""
    title, data, url = (
        file.get(name) if isinstance(file.get(name), str) else None for name in ("filename", "file_data", "file_url")
    )
    if data:
        return data_uri_text(data, title)
    return not_shown(f"file at {url}" if url else "file", title)
