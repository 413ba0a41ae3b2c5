"""What the notifications to the nodes of a cluster say: which logs a transaction has written, and which sessions it has deleted.

A notification is a list of items. An item is the id of a log, or `ID!OWNER` for a session that was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

CHANNEL = "portico_logs"
"""The channel of PostgreSQL."""
_NOBODY = "-"


def notify_deleted(connection: Connection, session_id: str, owner: str | None) -> None:
    """Notifies the nodes of a cluster, once the transaction is committed, that a session of this owner was deleted."""
    if connection.dialect.name == "postgresql":
        # The name in hexadecimal has only characters that need no quotes.
        name = _NOBODY if owner is None else owner.encode().hex()
        connection.exec_driver_sql(f"SELECT pg_notify('{CHANNEL}', '{session_id}!{name}')").close()


def deleted_sessions(items: Iterable[str]) -> dict[str, str | None]:
    """Returns the owners of the sessions that were deleted, by session."""
    found = (item.partition("!") for item in items if "!" in item)
    return {session_id: None if name == _NOBODY else bytes.fromhex(name).decode() for session_id, _, name in found}
