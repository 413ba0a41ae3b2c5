"""Deletes many rows in parts, each in a transaction of its own, so that the writes of turns come in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.store.database import Database
from gateway.store.sql import Connection, Parameters

PART_ROWS = 150
PART_BYTES = 4 * 1024 * 1024
"""What one transaction deletes at most: some milliseconds of the thread that writes. A single larger row is a part of its own."""


async def delete_in_parts(database: Database, query: str, names: Sequence[str], statement: str, parameters: Parameters) -> None:
    """Executes a delete for each row that a query, with its parameters, finds, until it finds none.

    `names` are those of the query's columns as parameters of the statement; `size` is the bytes of what is deleted. The query has
    no LIMIT. If this is interrupted, the rows that are left are found the next time.
    """

    while part := await database.read(lambda connection: find_part(connection, query, names, parameters)):
        await _delete(database, statement, part)


def find_part(connection: Connection, query: str, names: Sequence[str], parameters: Parameters) -> list[dict[str, Any]]:
    """Returns the first rows that a query finds, up to PART_ROWS and PART_BYTES, by `names` as above."""
    found, left = list[dict[str, Any]](), PART_BYTES
    for row in connection.rows(f"{query} LIMIT {PART_ROWS}", parameters):
        values = dict(zip(names, row, strict=True))
        left -= values.pop("size", 0)
        if found and left < 0:
            break
        found.append(values)
    return found


async def _delete(database: Database, statement: str, rows: list[dict[str, Any]]) -> None:
    await database.write(lambda connection: connection.execute_many(statement, rows))
