"""Statements that each turn executes, compiled once. All other queries are SQLAlchemy's constructs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Table, bindparam, insert
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.dml import UpdateBase

DEFERRED = {"deferred": True}
"""The execution option of a statement whose result nobody asks for. In a transaction that writes, PostgreSQL gets it together
with the next one that needs an answer, or with the commit: that one raises its errors.
"""


class PreparedStatement:
    """An insert or update whose values are all named parameters, as SQL text for each dialect.

    SQLAlchemy 2.1.9 needs 100 us to execute such a construct, with its cache of compiled statements, and 50 us to execute a
    text. SQLite itself needs 15 us. The events of its engine are those of any other statement.
    """

    def __init__(self, statement: UpdateBase) -> None:
        # Without RETURNING, which SQLAlchemy adds for keys that the database computes, and which keeps a statement open.
        self._statement = statement.inline() if isinstance(statement, Insert) else statement
        self._compiled: dict[str, tuple[str, Sequence[str] | None, Mapping[str, Any]]] = {}

    def execute(self, connection: Connection, parameters: Mapping[str, Any], *, deferred: bool = True) -> None:
        """Executes the statement with a value for each parameter. Values must be of types that the driver takes.

        If it is deferred, its errors may be raised by a later statement or the commit of the transaction.
        """
        text, names, constants = self.compiled(connection.dialect)
        values = {**constants, **parameters}
        given = values if names is None else tuple(values[name] for name in names)
        connection.exec_driver_sql(text, given, DEFERRED if deferred else None).close()

    def compiled(self, dialect: Dialect) -> tuple[str, Sequence[str] | None, Mapping[str, Any]]:
        """Returns the text, the names of its parameters in order (None if the text has them), and the values of constants."""
        if (found := self._compiled.get(dialect.name)) is not None:
            return found
        compiled = self._statement.compile(dialect=dialect)
        names = compiled.positiontup if compiled.positional else None
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        found = self._compiled[dialect.name] = str(compiled), names, constants
        return found


def prepared_insert(table: Table, *columns: str) -> PreparedStatement:
    """Returns an insert of one row whose parameters are named as these columns."""
    return PreparedStatement(insert(table).values({name: bindparam(name) for name in columns}))
