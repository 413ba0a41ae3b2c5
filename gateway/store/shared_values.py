"""Single values that all nodes of a cluster share, by their names."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.store.database import Database
from gateway.store.sql import Connection, insert, like

LIMITS = "limits"
"""The value that transactions lock which compare what a key has with its limit. One for all limits: with several, two nodes could
wait for each other, since writes that are committed together are in any order."""
_INSERT = insert("shared_values", ("name", "value"))


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
            connection.execute(f"{_INSERT} ON CONFLICT (name) DO NOTHING", {"name": name, "value": value})
            return str(read_value(connection, name))

        return await self._database.write(transaction)

    async def set(self, name: str, value: str) -> None:
        """Stores a value, in the place of an earlier one."""
        await self._database.write(lambda connection: set_value(connection, name, value))

    async def some(self, names: Sequence[str]) -> dict[str, str]:
        """Returns those of these values that there are, by their names."""
        query = "SELECT name, value FROM shared_values WHERE name {in_names}"
        return await self._database.read(lambda connection: dict(connection.rows(query, {"names": list(names)})))

    async def remove(self, name: str) -> None:
        """Deletes a value, if there is one of that name."""
        statement = "DELETE FROM shared_values WHERE name = :name"
        await self._database.write(lambda connection: connection.execute(statement, {"name": name}))

    async def remove_of_missing_nodes(self, prefix: str) -> None:
        """Deletes the values whose names are this prefix and the id of a node that there is no more.

        A node is stored before its values are: those of one that starts at this moment stay.
        """
        of_nodes = "SELECT :prefix || id FROM nodes"
        statement = f"DELETE FROM shared_values WHERE name LIKE :pattern ESCAPE '/' AND name NOT IN ({of_nodes})"
        values = {"prefix": prefix, "pattern": f"{like(prefix)}%"}
        await self._database.write(lambda connection: connection.execute(statement, values))


def read_value(connection: Connection, name: str) -> str | None:
    """Returns a value within a transaction; None if there is none of that name."""
    found: str | None = connection.value("SELECT value FROM shared_values WHERE name = :name", {"name": name})
    return found


def set_value(connection: Connection, name: str, value: str) -> None:
    """Stores a value within a transaction, and locks its row until the end of that."""
    statement = f"{_INSERT} ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    connection.execute(statement, {"name": name, "value": value})
