"""Connections to PostgreSQL that do not wait for ever: a server, or a proxy in front of it, can accept all and never answer.

The kernel of such a machine acknowledges what it gets, so that the timeouts of TCP notice nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

from gateway.store.times import STORE_TIMES

Result = TypeVar("Result")

_IS_AT_WORK = (
    # A server that has read a part of a pipeline is active, and waits for the rest.
    "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND wait_event IS DISTINCT FROM 'ClientRead'"
)


class AnsweredConnection(psycopg.Connection[Any]):
    """Connection that is closed, with an OperationalError, if the server is silent and does not work on a statement.

    A statement may take as long as it needs: while the server is silent, a second connection asks for it.
    """

    answer_timeout = STORE_TIMES.answer
    """Seconds of silence after which the server is asked."""
    server_process = 0
    """The process id that the server has for the connection; 0 if a pooler may use another one for each transaction."""
    ask: Callable[[], bool]

    @classmethod
    def opened(cls, answer_timeout: float, *args: Any, **parameters: Any) -> AnsweredConnection:
        """Returns a new connection to the database of `args` and `parameters`. Raises psycopg.Error."""
        connection = cls.connect(*args, **parameters)
        connection.answer_timeout = answer_timeout
        connection.ask = partial(_is_at_work, connection, *args, **parameters)
        return connection

    def wait(self, gen: PQGen[Result], *args: Any, **more: Any) -> Result:
        return super().wait(_answered(gen, self._require_work, self.answer_timeout), *args, **more)

    def _require_work(self) -> None:
        if not self.ask():
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer")


class Question(psycopg.Connection[Any]):
    """Connection for one question, which fails if the answer does not come in time."""

    answer_timeout = STORE_TIMES.answer

    def wait(self, gen: PQGen[Result], *args: Any, **more: Any) -> Result:
        return super().wait(_answered(gen, self._fail, self.answer_timeout), *args, **more)

    def _fail(self) -> None:
        self.pgconn.finish()
        raise psycopg.OperationalError("the server does not answer")


def _answered(gen: PQGen[Result], silent: Callable[[], None], seconds: float) -> PQGen[Result]:
    """Yield what a generator of psycopg yields. Calls `silent` each time that nothing has come for so many seconds."""
    try:
        wanted = next(gen)
        since = time.monotonic()
        while True:
            ready = yield wanted
            if ready:
                since = time.monotonic()
            elif time.monotonic() - since > seconds:
                silent()
                since = time.monotonic()
            wanted = gen.send(ready)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        gen.close()


def _is_at_work(connection: AnsweredConnection, *args: Any, **parameters: Any) -> bool:
    try:
        with Question.connect(*args, **parameters) as question:
            question.answer_timeout = connection.answer_timeout
            if not connection.server_process:
                # The pooler notices what becomes of its connections.
                return question.execute("SELECT 1").fetchone() is not None
            found = question.execute(_IS_AT_WORK, (connection.server_process,)).fetchone()
    except psycopg.Error:
        return False
    return found is not None and bool(found[0])
