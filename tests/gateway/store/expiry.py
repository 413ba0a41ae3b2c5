"""Lets time pass for the leases and nodes of a store: their times are those of the database's clock."""

from __future__ import annotations

from gateway.store import Store
from gateway.store.sql import Connection


async def expire(store: Store, log_id: str) -> None:
    """Let the lease of a log expire."""

    def expired(connection: Connection) -> None:
        connection.execute("UPDATE leases SET expires_at = 1 WHERE log_id = :log_id", {"log_id": log_id})

    await store._database.write(expired)


async def silence(store: Store, node: str) -> None:
    """Let a node have had no heartbeat for an hour, and its leases expire."""

    def silent(connection: Connection) -> None:
        connection.execute("UPDATE nodes SET heartbeat_at = heartbeat_at - 3600 WHERE id = :node", {"node": node})
        connection.execute("UPDATE leases SET expires_at = 1 WHERE node = :node AND expires_at > 0", {"node": node})

    await store._database.write(silent)
