"""Reads the first rows of a query up to a size, without the rest: a row may have many megabytes."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.store.sql import Connection, Parameters, Row

MOST_ROWS = 4096
"""Rows that are read at once from a server, without a limit of the caller."""


def rows_up_to(
    connection: Connection,
    query: str,
    parameters: Parameters,
    *,
    order: str,
    sized: str,
    size: int,
    descending: bool = False,
    limit: int | None = None,
) -> Iterable[Row]:
    """Yields the rows of a query in an order, until they have about `size` bytes; at least one, and up to `limit`.

    The query is a SELECT without ORDER BY and LIMIT. `order` is one of its columns; or several, if it is not descending. `sized`
    is SQL of the bytes of a row by columns of the query, such as `{size}(body)`. The caller stops where it has enough: from
    SQLite, which is no server, all rows come.
    """
    order = f"ORDER BY {order}{' DESC' if descending else ''}"
    most_rows = limit if limit is not None else -1 if connection.dialect == "sqlite" else MOST_ROWS
    parameters = {**parameters, "most_rows": most_rows, "most_bytes": size}
    if connection.dialect == "sqlite":
        return connection.execute(f"{query} {order} LIMIT :most_rows", parameters)
    # A cursor of the server would be a round trip for each few rows. The size of a column is known without reading its value.
    before = f"sum({sized}) OVER ({order}) - {sized} AS bytes_before"
    query = f"SELECT *, {before} FROM ({query}) AS found {order} LIMIT :most_rows"
    wanted = f"SELECT * FROM ({query}) AS found WHERE bytes_before < :most_bytes {order}"
    return [row[:-1] for row in connection.execute(wanted, parameters)]
