"""The clock of the database, which all nodes of a cluster share, whatever their own clocks are."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Float
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

TIME = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()) AS DOUBLE PRECISION)",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
"""DatabaseTime as SQL, by the name of the dialect."""


class DatabaseTime(FunctionElement[float]):
    """The time of the database in seconds since the epoch: of the statement, not of the transaction."""

    type = Float()
    inherit_cache = True


@compiles(DatabaseTime)
def _time(element: DatabaseTime, compiler: Any, **_: Any) -> str:
    return TIME[compiler.dialect.name]
