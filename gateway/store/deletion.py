"""Deletes many rows in parts, each in a transaction of its own, so that the writes of turns come in between."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Delete, Select

from gateway.store.database import Database

PART_ROWS = 150
PART_BYTES = 4 * 1024 * 1024
"""What one transaction deletes at most: some milliseconds of the thread that writes. A single larger row is a part of its own."""


async def delete_in_parts(database: Database, query: Select[Any], statement: Delete) -> None:
    """Executes a delete for each row that a query finds, until it finds none.

    The columns of the query are named as the parameters of the statement; one named `size` is the bytes of what is deleted. If
    this is interrupted, the rows that are left are found the next time.
    """

    def find(connection: Connection) -> list[dict[str, Any]]:
        found, left = list[dict[str, Any]](), PART_BYTES
        for row in connection.execute(query.limit(PART_ROWS)).mappings():
            parameters = dict(row)
            left -= parameters.pop("size", 0)
            if found and left < 0:
                break
            found.append(parameters)
        return found

    while found := await database.read(find):
        await _delete(database, statement, found)


async def _delete(database: Database, statement: Delete, parameters: list[dict[str, Any]]) -> None:
    await database.write(lambda connection: connection.execute(statement, parameters).close())
