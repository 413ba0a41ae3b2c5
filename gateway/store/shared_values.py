"""Single values that all nodes of a cluster share, by their names."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, select, text

from gateway.store import schema
from gateway.store.database import Database

_TABLE = schema.shared_values
LIMITS = "limits"
"""The value that transactions lock which compare what a key has with its limit. One for all limits: with several, two nodes could
wait for each other, since writes that are committed together are in any order."""
_ADD = text("INSERT INTO shared_values (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING")
_SET = text(
    "INSERT INTO shared_values (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_GET = select(_TABLE.c.value).where(_TABLE.c.name == bindparam("of_name"))


class SharedValueRepository:
    """Texts by their names."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, name: str) -> str | None:
        """Returns a value; None if there is none of that name."""
        return await self._database.read(lambda connection: read_value(connection, name))

    async def get_or_add(self, name: str, value: str) -> str:
        """Stores a value unless there is one of that name. Returns the one that is stored then: of nodes that start at the
        same time, all get the same."""

        def transaction(connection: Connection) -> str:
            connection.execute(_ADD, {"name": name, "value": value}).close()
            return str(read_value(connection, name))

        return await self._database.write(transaction)

    async def set(self, name: str, value: str) -> None:
        """Stores a value, in the place of an earlier one."""
        await self._database.write(lambda connection: set_value(connection, name, value))

    async def some(self, names: Sequence[str]) -> dict[str, str]:
        """Returns those of these values that there are, by their names."""
        query = select(_TABLE.c.name, _TABLE.c.value).where(_TABLE.c.name.in_(names))
        return await self._database.read(lambda connection: {row.name: row.value for row in connection.execute(query)})

    async def remove(self, name: str) -> None:
        """Deletes a value, if there is one of that name."""
        statement = delete(_TABLE).where(_TABLE.c.name == name)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def remove_of_missing_nodes(self, prefix: str) -> None:
        """Deletes the values whose names are this prefix and the id of a node that there is no more.

        A node is stored before its values are: those of one that starts at this moment stay.
        """
        of_nodes = select(prefix + schema.nodes.c.id)
        statement = delete(_TABLE).where(_TABLE.c.name.startswith(prefix, autoescape=True), _TABLE.c.name.not_in(of_nodes))
        await self._database.write(lambda connection: connection.execute(statement).close())


def read_value(connection: Connection, name: str) -> str | None:
    """Returns a value within a transaction; None if there is none of that name."""
    found: str | None = connection.execute(_GET, {"of_name": name}).scalar()
    return found


def set_value(connection: Connection, name: str, value: str) -> None:
    """Stores a value within a transaction, and locks its row until the end of that."""
    connection.execute(_SET, {"name": name, "value": value}).close()
