"""What other writes do with leases: fenced ones check them, and the deletion of a log deletes its lease."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, select

from gateway.store import schema

_TABLE = schema.leases
_CHECK = select(_TABLE.c.log_id, _TABLE.c.node, _TABLE.c.token).where(_TABLE.c.log_id.in_(bindparam("log_ids", expanding=True)))
# In one order, so that two groups of writes do not wait for each other.
_LOCKED_CHECK = _CHECK.order_by(_TABLE.c.log_id).with_for_update(read=True)


def leases_in_force(connection: Connection, log_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Returns the node and the token of each of these logs, which nobody else changes before the end of the transaction."""
    rows = connection.execute(_LOCKED_CHECK, {"log_ids": sorted(set(log_ids))})
    return {row.log_id: (row.node, row.token) for row in rows}


def delete_lease(connection: Connection, log_id: str) -> None:
    """Deletes the lease of a log that is deleted in this transaction."""
    connection.execute(delete(_TABLE).where(_TABLE.c.log_id == log_id)).close()
