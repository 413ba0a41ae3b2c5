"""Programs that use a database while it is to be migrated, and are too old for what it is migrated to."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlalchemy import Connection, inspect, or_, select

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.clock import DatabaseTime

LIVE_SECONDS = 10.0
"""A node whose last heartbeat is younger may run, whether or not it is connected at the moment."""


def check_nobody_older(
    connection: Connection, found: int, compatible_from: int, connected: Callable[[], Collection[int]], own_node: str | None
) -> None:
    """Raises ConfigError if a program runs that could not use the database any more once it is migrated from version `found`.

    `connected` returns the versions of the programs that have claimed it. `own_node` is the node that starts, whose earlier
    process has ended. No node starts before the end of the transaction.
    """
    # A node reads this row, with `until_commit`, in the transaction that stores its own.
    connection.execute(select(schema.schema_version.c.version).with_for_update()).close()
    older = [version for version in connected() if version < compatible_from]
    nodes, running = schema.nodes, list[str]()
    if inspect(connection).has_table(nodes.name):
        lives = or_(nodes.c.heartbeat_at > DatabaseTime() - LIVE_SECONDS, nodes.c.store_version.in_(older))
        columns = (nodes.c.id, nodes.c.address, nodes.c.version, nodes.c.store_version)
        query = select(*columns).where(nodes.c.store_version < compatible_from, nodes.c.id != (own_node or ""), lives)
        rows = connection.execute(query.order_by(nodes.c.id)).all()
        running = [f"{row.id} ({row.address}, portico {row.version}, store version {row.store_version})" for row in rows]
        older = [version for version in older if version not in {row.store_version for row in rows}]
    running += [f"a Portico of store version {version}" for version in older]
    if running:
        raise ConfigError(
            f"the store is of version {found}, not to be migrated to {schema.VERSION} while programs use it that could not go "
            f"on: {', '.join(running)}. Drain (`portico node drain ID`) and stop them first, or upgrade them to a Portico that "
            f"reads version {compatible_from}; then start this one"
        )
