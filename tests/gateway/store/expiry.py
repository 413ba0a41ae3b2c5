"""Lets time pass for the leases and nodes of a store: their times are those of the database's clock."""

from __future__ import annotations

from sqlalchemy import update

from gateway.store import Store, schema


async def expire(store: Store, log_id: str) -> None:
    """Let the lease of a log expire."""
    table = schema.leases
    statement = update(table).where(table.c.log_id == log_id).values(expires_at=1.0)
    await store._database.write(lambda connection: connection.execute(statement).close())


async def silence(store: Store, node: str) -> None:
    """Let a node have had no heartbeat for an hour, and its leases expire."""
    nodes, leases = schema.nodes, schema.leases
    statements = [
        update(nodes).where(nodes.c.id == node).values(heartbeat_at=nodes.c.heartbeat_at - 3600.0),
        update(leases).where(leases.c.node == node, leases.c.expires_at > 0).values(expires_at=1.0),
    ]
    for statement in statements:
        await store._database.write(lambda connection, statement=statement: connection.execute(statement).close())  # type: ignore[misc]
