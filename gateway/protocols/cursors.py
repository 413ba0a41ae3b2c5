"""Cursors of session lists: the position after the last session of a page, as a string that clients pass back unchanged."""

from __future__ import annotations

import base64
import binascii

from gateway.errors import BadRequest
from gateway.store import Cursor


def encode_cursor(created_at: float, session_id: str) -> str:
    """Return the cursor after a session. `created_at` is its creation time in seconds since the epoch."""
    return base64.urlsafe_b64encode(f"{created_at!r} {session_id}".encode()).decode()


def decode_cursor(cursor: str | None, *, parameter: str, source: str) -> Cursor | None:
    """Return the position of a cursor, or None for the first page.

    `parameter` is the name of the client's parameter, `source` the field of a page that has its cursor; both are for the error.
    Raises BadRequest for a string that is not a cursor.
    """
    if cursor is None:
        return None
    try:
        created_at, session_id = base64.urlsafe_b64decode(cursor.encode()).decode().split(" ")
        return float(created_at), session_id
    except (ValueError, binascii.Error) as error:
        raise BadRequest(
            f"{parameter}: not a cursor of this gateway; pass the {source} of the previous page unchanged"
        ) from error
