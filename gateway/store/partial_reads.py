"""Reads the first rows of a query up to a size, without the rest: a row may have many megabytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, Connection, Select, func, select

FETCHED_ROWS = 4
"""Rows that are fetched from SQLite at once."""
_LAZY = {"yield_per": FETCHED_ROWS}
MOST_ROWS = 4096
"""Rows that are read from other databases at once."""


def rows_up_to(
    connection: Connection, query: Select[Any], order: Column[Any], sized: Column[Any], size: int, *, descending: bool = False
) -> Iterable[Any]:
    """Yields the rows of a query in an order, until the values of a column have about `size` bytes together; at least one.

    `order` is one of the query's columns. The caller stops where it has enough: from SQLite, which is no server, all rows come.
    """
    if connection.dialect.name == "sqlite":
        return connection.execute(query.order_by(order.desc() if descending else order), execution_options=_LAZY)
    # A cursor of the server would be a round trip for each few rows. The size of a column is known without reading its value.
    bytes_of_row = func.octet_length(sized)
    before = func.sum(bytes_of_row).over(order_by=order.desc() if descending else order) - bytes_of_row
    query = query.add_columns(before.label("bytes_before")).order_by(order.desc() if descending else order)
    if query._limit_clause is None:
        query = query.limit(MOST_ROWS)
    found = query.subquery()
    *columns, bytes_before = found.c
    position = found.c[order.name]
    wanted = select(*columns).where(bytes_before < size).order_by(position.desc() if descending else position)
    return connection.execute(wanted)
