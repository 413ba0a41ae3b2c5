"""Prepared statements: the SQL of each dialect, values, constants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, bindparam, create_engine, func, insert, select, update
from sqlalchemy.exc import IntegrityError, ProgrammingError

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.prepared import PreparedStatement, prepared_insert
from tests.stores import store_url

PROCESSES = schema.processes
INSERT = prepared_insert(PROCESSES, "marker", "pid", "started_at")
MOVE = PreparedStatement(
    update(PROCESSES)
    .where(PROCESSES.c.marker == bindparam("of_marker"))
    .values(pid=PROCESSES.c.pid + 7, started_at=bindparam("at"))
)
RUN = prepared_insert(schema.runs, "id", "log_id", "state", "stop_reason", "first_seq", "started_at")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    found = await Database.open(store_url(tmp_path))
    yield found
    await found.close()


async def test_values_are_named_and_constants_stay(database: Database) -> None:
    def transaction(connection: Connection) -> list[tuple[object, ...]]:
        for n in range(2):
            INSERT.execute(connection, {"started_at": 0.5 + n, "pid": n, "marker": f"m{n}"})
        MOVE.execute(connection, {"at": 3.5, "of_marker": "m1"})
        return [tuple(row) for row in connection.execute(select(PROCESSES).order_by(PROCESSES.c.marker))]

    assert await database.write(transaction) == [("m0", 0, 0.5), ("m1", 8, 3.5)]


async def test_none_is_null(database: Database) -> None:
    def transaction(connection: Connection) -> object:
        values = {"id": "r", "log_id": "l", "state": "running", "stop_reason": None, "first_seq": 1, "started_at": 0.0}
        RUN.execute(connection, values)
        return connection.execute(select(schema.runs.c.id).where(schema.runs.c.stop_reason.is_(None))).scalar()

    assert await database.write(transaction) == "r"


async def test_a_value_that_is_missing_is_an_error(database: Database) -> None:
    with pytest.raises((KeyError, ProgrammingError), match="pid"):
        await database.write(lambda connection: INSERT.execute(connection, {"marker": "m", "started_at": 0.0}))


async def test_errors_are_those_of_the_engine_and_the_next_transaction_works(database: Database) -> None:
    values = {"marker": "m", "pid": 1, "started_at": 0.0}
    await database.write(lambda connection: INSERT.execute(connection, values))
    with pytest.raises(IntegrityError):
        await database.write(lambda connection: INSERT.execute(connection, values))
    await database.write(lambda connection: INSERT.execute(connection, {**values, "marker": "n"}))
    assert await database.read(lambda connection: len(connection.execute(select(PROCESSES)).all())) == 2


@pytest.mark.sqlite_only
def test_inserts_return_nothing() -> None:
    position = select(func.count()).select_from(schema.messages).scalar_subquery()
    statement = PreparedStatement(insert(schema.messages).values(session_id=bindparam("a"), position=position))
    text, names, _ = statement.compiled(create_engine("sqlite://").dialect)
    assert "RETURNING" not in text and names == ["a"]
