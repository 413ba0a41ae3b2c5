"""Transactions that write, sent to PostgreSQL in libpq's pipeline mode: not each statement waits for its answer.

A round trip to a server on the same machine takes 0.1 ms, and several times as much where the processors are busy: two processes
have to be scheduled for each.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import READY_R, WAIT_RW
from sqlalchemy import Connection, Engine, event

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import ExecutionContext

_COMMIT = "COMMIT"


class WritePipeline:
    """A transaction begins with the statement `first`, before which BEGIN is sent. There is one at a time.

    A statement with the option DEFERRED is not waited for; any other one is answered when it returns. The COMMIT is sent with
    what comes before it, and waits for all answers. An error is raised by the first statement that finds it.
    """

    def __init__(self, first: str) -> None:
        self._first = first
        self._connection: psycopg.Connection[Any] | None = None
        self._pipeline: psycopg.Pipeline | None = None
        self._entered = ExitStack()

    def install(self, engine: Engine) -> None:
        """Handles the statements of all connections of an engine."""
        event.listen(engine, "do_execute", self._execute)
        event.listen(engine, "do_executemany", self._execute_many)
        event.listen(engine, "commit", self._commit)
        event.listen(engine, "rollback", self._rollback)

    # SQLAlchemy reports what these two raise as errors of the statement.

    def _execute(self, cursor: psycopg.Cursor[Any], statement: str, parameters: Any, context: ExecutionContext) -> bool:
        if statement == self._first:
            self._begin(cursor.connection)
        elif cursor.connection is not self._connection:
            return False
        # Not prepared on the server, after which a message would only name it: who looks at messages finds the commits.
        cursor.execute(statement, parameters, prepare=False if statement == _COMMIT else None)
        if statement == _COMMIT:
            self._end()
        elif self._pipeline is not None and "deferred" not in context.execution_options:
            self._wait()
        return True

    def _execute_many(self, cursor: psycopg.Cursor[Any], statement: str, parameters: Any, _: ExecutionContext) -> bool:
        if cursor.connection is not self._connection:
            return False
        cursor.executemany(statement, parameters)
        if self._pipeline is not None:
            self._wait()
        return True

    def _begin(self, connection: psycopg.Connection[Any]) -> None:
        # A connection that was lost may not have been left.
        self._leave()
        self._connection = connection
        # A libpq before version 14 has no pipelines.
        if psycopg.Pipeline.is_supported():
            self._pipeline = self._entered.enter_context(connection.pipeline())
        connection.execute("BEGIN")

    def _wait(self) -> None:
        """Wait for all answers. Raises the first error of the server."""
        assert self._connection is not None and self._pipeline is not None
        _send_all(self._connection)
        self._pipeline.sync()

    # Reads of other threads end with a rollback, too, which sends nothing.

    def _commit(self, connection: Connection) -> None:
        if self._is_of(connection):
            # SQLAlchemy's own commit finds that no transaction is open.
            connection.exec_driver_sql(_COMMIT).close()

    def _rollback(self, connection: Connection) -> None:
        if self._is_of(connection):
            self._leave()

    def _is_of(self, connection: Connection) -> bool:
        return not connection.invalidated and connection.connection.driver_connection is self._connection

    def _leave(self) -> None:
        # The error is known already, or the connection lost.
        with suppress(psycopg.Error):
            self._end()

    def _end(self) -> None:
        """Wait for all answers. Raises the first error of the server."""
        self._connection = self._pipeline = None
        self._entered.close()


def _send_all(connection: psycopg.Connection[Any]) -> None:
    """Send all that libpq has to send.

    The `sync` of psycopg 3.3.9 tries that once, and then waits for an answer: of a value that is larger than the buffers of the
    socket, the server waits for the rest.
    """
    libpq = connection.pgconn

    def sending() -> PQGen[None]:
        while libpq.flush():
            if (yield WAIT_RW) & READY_R:
                # The server may wait until its answers are read.
                libpq.consume_input()

    connection.wait(sending())
