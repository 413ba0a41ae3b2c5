"""Queries about the messages of sessions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, insert, select, update

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.rows import MessageRow

_NEXT_POSITION = (
    select(func.coalesce(func.max(schema.messages.c.position) + 1, 0))
    .where(schema.messages.c.session_id == bindparam("of_session"))
    .scalar_subquery()
)
# Statements that a turn executes are built once: that costs more than executing them.
_INSERT = insert(schema.messages).values(
    session_id=bindparam("of_session"), position=_NEXT_POSITION, body=bindparam("text"), seq=bindparam("number")
)


class MessageRepository:
    """The history of each session, in order."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, session_id: str, rows: Sequence[MessageRow]) -> None:
        """Stores messages at the end of a session's history."""
        await self._database.write(lambda connection: insert_messages(connection, session_id, rows))

    async def bodies(self, session_id: str) -> list[str]:
        """Returns a session's whole history as JSON texts, in order."""
        table = schema.messages
        query = select(table.c.body).where(table.c.session_id == session_id).order_by(table.c.position)
        return await self._database.read(lambda connection: list(connection.execute(query).scalars()))

    async def rows(self, session_id: str) -> list[MessageRow]:
        """Returns a session's whole history with the numbers of its messages, in order."""
        table = schema.messages
        query = select(table.c.body, table.c.seq).where(table.c.session_id == session_id).order_by(table.c.position)
        return await self._database.read(lambda connection: [MessageRow(row.body, row.seq) for row in connection.execute(query)])

    async def set_numbers(self, session_id: str, numbers: Sequence[int | None]) -> None:
        """Replaces the numbers of the first messages of a session, one for each."""
        rows = [{"of_session": session_id, "at": position, "number": number} for position, number in enumerate(numbers)]
        table = schema.messages
        statement = update(table).where(table.c.session_id == bindparam("of_session"), table.c.position == bindparam("at"))
        await self._database.write(lambda connection: connection.execute(statement.values(seq=bindparam("number")), rows).close())


def insert_messages(connection: Connection, session_id: str, rows: Sequence[MessageRow]) -> None:
    """Appends messages within a transaction."""
    if rows:
        connection.execute(_INSERT, [{"of_session": session_id, "text": row.body, "number": row.seq} for row in rows])
