"""What the notifications to the nodes of a cluster say: which logs a transaction has written, and which sessions it has deleted.

A notification is a list of items. An item is the id of a log, or `ID!OWNER` for a session that was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.store.sql import Connection

CHANNEL = "portico_logs"
"""The channel of PostgreSQL."""
_NOBODY = "-"


def notify_deleted(connection: Connection, session_id: str, owner: str | None) -> None:
    """Notifies the nodes of a cluster, once the transaction is committed, that a session of this owner was deleted."""
    if connection.dialect == "postgresql":
        # In hexadecimal the name has no comma, which stands between two items.
        name = _NOBODY if owner is None else owner.encode().hex()
        connection.execute("SELECT pg_notify(:channel, :item)", {"channel": CHANNEL, "item": f"{session_id}!{name}"})


def deleted_sessions(items: Iterable[str]) -> dict[str, str | None]:
    """Returns the owners of the sessions that were deleted, by session."""
    found = (item.partition("!") for item in items if "!" in item)
    return {session_id: None if name == _NOBODY else bytes.fromhex(name).decode() for session_id, _, name in found}
