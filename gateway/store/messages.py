"""Queries about the messages of sessions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, insert, literal, select

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.partial_reads import FETCHED_ROWS, rows_up_to
from gateway.store.prepared import PreparedStatement
from gateway.store.rows import MessageRow

_NEXT_POSITION = (
    select(func.coalesce(func.max(schema.messages.c.position) + 1, 0))
    .where(schema.messages.c.session_id == bindparam("of_session"))
    .scalar_subquery()
)

_INSERT = PreparedStatement(
    insert(schema.messages).values(
        session_id=bindparam("of_session"), position=_NEXT_POSITION, body=bindparam("text"), seq=bindparam("number")
    )
)

PAGE_CHARACTERS = 1024 * 1024
"""About how much JSON one page of messages holds; a larger single message is a page of its own."""


class MessageRepository:
    """The history of each session, in order."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, session_id: str, rows: Sequence[MessageRow]) -> None:
        """Stores messages at the end of a session's history."""
        await self._database.write(lambda connection: insert_messages(connection, session_id, rows))

    async def count(self, session_id: str) -> int:
        """Returns the number of messages of a session. Their positions are 0 to before that number."""
        return await self._database.read(lambda connection: _count(connection, session_id))

    async def count_until(self, session_id: str, seq: int) -> int:
        """Returns the number of messages of a session that are complete with the event of this number, which are its first."""
        table = schema.messages
        query = select(func.coalesce(func.max(table.c.position) + 1, 0)).where(table.c.session_id == session_id)
        query = query.where(table.c.seq.is_(None) | (table.c.seq <= seq))
        return await self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def count_seeds(self, session_id: str) -> int:
        """Returns how many messages a session was created with: those before the first one that has a number."""
        table = schema.messages
        numbered = select(table.c.position).where(table.c.session_id == session_id, table.c.seq.is_not(None))
        first = numbered.order_by(table.c.position).limit(1)

        def read(connection: Connection) -> int:
            found = connection.execute(first).scalar()
            return int(found) if found is not None else _count(connection, session_id)

        return await self._database.read(read)

    async def page(self, session_id: str, first: int, end: int) -> list[str]:
        """Returns messages as JSON texts, from the position `first` to before `end`: PAGE_CHARACTERS of them, at least one."""
        table = schema.messages
        query = select(table.c.position, table.c.body).where(table.c.session_id == session_id)
        query = query.where(table.c.position >= first, table.c.position < end)

        def read(connection: Connection) -> list[str]:
            found, size = [], 0
            for _, body in rows_up_to(connection, query, table.c.position, table.c.body, PAGE_CHARACTERS):
                found.append(body)
                size += len(body)
                if size >= PAGE_CHARACTERS:
                    break
            return found

        return await self._database.read(read)

    async def numbered(self, session_id: str, first: int, limit: int) -> list[tuple[int, MessageRow]]:
        """Returns up to `limit` messages with their positions, from `first` on: PAGE_CHARACTERS of them, at least one."""
        table = schema.messages
        query = select(table.c.position, table.c.body, table.c.seq).where(table.c.session_id == session_id)
        query = query.where(table.c.position >= first).limit(limit)

        def read(connection: Connection) -> list[tuple[int, MessageRow]]:
            found, size = list[tuple[int, MessageRow]](), 0
            for position, body, seq in rows_up_to(connection, query, table.c.position, table.c.body, PAGE_CHARACTERS):
                found.append((position, MessageRow(body, seq)))
                size += len(body)
                if size >= PAGE_CHARACTERS:
                    break
            return found

        return await self._database.read(read)

    async def first_of_newest(self, session_id: str, first: int, end: int, size: int) -> int:
        """Returns the position, `first` at least, from which on the messages before `end` have at most `size` characters.

        The last message counts in any case.
        """
        table = schema.messages
        query = select(table.c.position, func.length(table.c.body)).where(table.c.session_id == session_id)
        query = query.where(table.c.position >= first, table.c.position < end)

        def read(connection: Connection) -> int:
            found, left = end, size
            for position, length in rows_up_to(connection, query, table.c.position, table.c.body, size + 1, descending=True):
                left -= length
                if left < 0 and found < end:
                    break
                found = position
            return found

        return await self._database.read(read)

    async def system_messages(self, session_id: str, before: int) -> list[str]:
        """Returns the system messages before a position as JSON texts, in order."""
        table = schema.messages
        query = select(table.c.body).where(table.c.session_id == session_id, table.c.position < before)
        query = query.where(table.c.body.like('{"role":"system"%')).order_by(table.c.position)
        return await self._database.read(lambda connection: list(connection.execute(query).scalars()))

    async def rows_from(self, session_id: str, seq: int, after: int, rows: int = FETCHED_ROWS) -> list[tuple[int, MessageRow]]:
        """Returns up to `rows` messages with numbers from `seq` on, behind the position `after`, with their positions."""
        table = schema.messages
        query = select(table.c.position, table.c.body, table.c.seq).where(table.c.session_id == session_id, table.c.seq >= seq)
        query = query.where(table.c.position > after).order_by(table.c.position).limit(rows)
        return await self._database.read(
            lambda connection: [(row.position, MessageRow(row.body, row.seq)) for row in connection.execute(query)]
        )

    async def rows(self, session_id: str) -> list[MessageRow]:
        """Returns a session's whole history with the numbers of its messages, in order."""
        table = schema.messages
        query = select(table.c.body, table.c.seq).where(table.c.session_id == session_id).order_by(table.c.position)
        return await self._database.read(lambda connection: [MessageRow(row.body, row.seq) for row in connection.execute(query)])


def _count(connection: Connection, session_id: str) -> int:
    table = schema.messages
    query = select(func.coalesce(func.max(table.c.position) + 1, 0)).where(table.c.session_id == session_id)
    return int(connection.execute(query).scalar_one())


def insert_messages(connection: Connection, session_id: str, rows: Sequence[MessageRow]) -> None:
    """Appends messages within a transaction."""
    for row in rows:
        _INSERT.execute(connection, {"of_session": session_id, "text": row.body, "number": row.seq})


def copy_messages(connection: Connection, session_id: str, origin: str, count: int) -> None:
    """Copies the first `count` messages of another session into a new one within a transaction, without their numbers."""
    table = schema.messages
    query = select(literal(session_id), table.c.position, table.c.body)
    query = query.where(table.c.session_id == origin, table.c.position < count)
    connection.execute(insert(table).from_select(["session_id", "position", "body"], query))
