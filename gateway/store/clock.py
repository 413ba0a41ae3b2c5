"""The clock of the database, which all nodes of a cluster share, whatever their own clocks are."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Float
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class DatabaseTime(FunctionElement[float]):
    """The time of the database in seconds since the epoch: of the statement, not of the transaction."""

    type = Float()
    inherit_cache = True


@compiles(DatabaseTime)
def _standard(element: DatabaseTime, compiler: Any, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()) AS DOUBLE PRECISION)"


@compiles(DatabaseTime, "sqlite")
def _sqlite(element: DatabaseTime, compiler: Any, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"
