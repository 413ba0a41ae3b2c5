"""What other writes do with leases: fenced ones check them, and the deletion of a log deletes its lease."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.store.sql import Connection

# In one order, so that two groups of writes do not wait for each other.
_LOCKED = "SELECT log_id, node, token FROM leases WHERE log_id {in_ids} ORDER BY log_id {for_share}"


def leases_in_force(connection: Connection, log_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Returns the node and the token of each of these logs, which nobody else changes before the end of the transaction."""
    rows = connection.execute(_LOCKED, {"ids": sorted(set(log_ids))})
    return {log_id: (node, token) for log_id, node, token in rows}


def delete_lease(connection: Connection, log_id: str) -> None:
    """Deletes the lease of a log that is deleted in this transaction."""
    connection.execute("DELETE FROM leases WHERE log_id = :id", {"id": log_id})
