"""Queries about the messages of sessions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, insert, select

from gateway.store import schema
from gateway.store.database import Database

_NEXT_POSITION = (
    select(func.coalesce(func.max(schema.messages.c.position) + 1, 0))
    .where(schema.messages.c.session_id == bindparam("of_session"))
    .scalar_subquery()
)
# Statements that a turn executes are built once: that costs more than executing them.
_INSERT = insert(schema.messages).values(session_id=bindparam("of_session"), position=_NEXT_POSITION, body=bindparam("text"))


class MessageRepository:
    """The history of each session, as JSON texts in order."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, session_id: str, bodies: Sequence[str]) -> None:
        """Stores messages (JSON texts) at the end of a session's history."""
        await self._database.write(lambda connection: insert_messages(connection, session_id, bodies))

    async def bodies(self, session_id: str) -> list[str]:
        """Returns a session's whole history as JSON texts, in order."""
        table = schema.messages
        query = select(table.c.body).where(table.c.session_id == session_id).order_by(table.c.position)
        return await self._database.read(lambda connection: list(connection.execute(query).scalars()))


def insert_messages(connection: Connection, session_id: str, bodies: Sequence[str]) -> None:
    """Appends messages within a transaction."""
    if bodies:
        connection.execute(_INSERT, [{"of_session": session_id, "text": body} for body in bodies])
