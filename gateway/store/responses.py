"""Queries about answers that clients name by ids of their own, and about the names of conversations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, insert, select, update

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.prepared import PreparedStatement
from gateway.store.rows import ConversationRecord, ResponseRecord


def _insert_statement() -> PreparedStatement:
    table, sessions = schema.responses, schema.sessions
    values = [bindparam(column.name, type_=column.type) for column in table.columns]
    owner = select(sessions.c.id).where(sessions.c.id == bindparam("session_id", type_=sessions.c.id.type))
    return PreparedStatement(insert(table).from_select([*table.columns.keys()], select(*values).where(owner.exists())))


_INSERT = _insert_statement()
_SET_OVER = PreparedStatement(
    update(schema.responses)
    .where(schema.responses.c.id == bindparam("of_id"))
    .values(last_seq=bindparam("last"), completed_at=bindparam("at"))
)


class ResponseRepository:
    """Answers by their ids, and conversations by theirs. A session is deleted with its answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: ResponseRecord) -> None:
        """Stores an answer. Does nothing if its session has been deleted."""
        values = _values(record)
        await self._database.write(lambda connection: _INSERT.execute(connection, values))

    async def get(self, response_id: str) -> ResponseRecord | None:
        """Returns an answer, None if there is none of that id."""
        return await self._first(select(schema.responses).where(schema.responses.c.id == response_id))

    async def newest(self, conversation_id: str) -> ResponseRecord | None:
        """Returns the newest answer of a conversation, None if it has none."""
        table = schema.responses.c
        query = select(schema.responses).where(table.conversation_id == conversation_id)
        return await self._first(query.order_by(table.created_at.desc()).limit(1))

    async def set_over(self, ends: Mapping[str, tuple[int, float]]) -> None:
        """Stores the numbers of the last events of answers, by their ids, and when they came."""

        def transaction(connection: Connection) -> None:
            for response_id, (last_seq, completed_at) in ends.items():
                _SET_OVER.execute(connection, {"of_id": response_id, "last": last_seq, "at": completed_at})

        await self._database.write(transaction)

    async def delete(self, response_id: str) -> None:
        """Deletes an answer's id. The session and its events stay."""
        statement = delete(schema.responses).where(schema.responses.c.id == response_id)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def add_conversation(self, record: ConversationRecord) -> None:
        """Stores the name of a conversation."""
        statement = insert(schema.conversations).values(**_values(record))
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def get_conversation(self, conversation_id: str) -> ConversationRecord | None:
        """Returns a conversation, None if there is none of that id."""
        query = select(schema.conversations).where(schema.conversations.c.id == conversation_id)
        row = await self._row(query)
        return ConversationRecord(**row) if row else None

    async def update_conversation(self, record: ConversationRecord) -> None:
        """Replaces the body of a conversation."""
        statement = update(schema.conversations).where(schema.conversations.c.id == record.id)
        statement = statement.values(body=json.dumps(record.body))
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def delete_conversation(self, conversation_id: str) -> None:
        """Deletes the name of a conversation. Its answers stay."""
        statement = delete(schema.conversations).where(schema.conversations.c.id == conversation_id)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def _first(self, query: Select[Any]) -> ResponseRecord | None:
        row = await self._row(query)
        return ResponseRecord(**row) if row else None

    async def _row(self, query: Select[Any]) -> dict[str, Any] | None:
        row = await self._database.read(lambda connection: connection.execute(query).mappings().first())
        return {**row, "body": json.loads(row["body"])} if row else None


def _values(record: ResponseRecord | ConversationRecord) -> dict[str, Any]:
    # Not `asdict`, which copies the body.
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {**values, "body": json.dumps(record.body)}
