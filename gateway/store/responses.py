"""Queries about answers that clients name by ids of their own, and about the names of conversations."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Select, Table, delete, insert, select, update

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.rows import ConversationRecord, ResponseRecord


class ResponseRepository:
    """Answers by their ids, and conversations by theirs. A session is deleted with its answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: ResponseRecord) -> None:
        """Stores an answer. Does nothing if its session has been deleted."""
        values = _values(record)

        def transaction(connection: Connection) -> None:
            known = select(schema.sessions.c.id).where(schema.sessions.c.id == record.session_id)
            if connection.execute(known).first() is not None:
                connection.execute(insert(schema.responses).values(**values))

        await self._database.write(transaction)

    async def get(self, response_id: str) -> ResponseRecord | None:
        """Returns an answer, None if there is none of that id."""
        return await self._first(select(schema.responses).where(schema.responses.c.id == response_id))

    async def newest(self, conversation_id: str) -> ResponseRecord | None:
        """Returns the newest answer of a conversation, None if it has none."""
        table = schema.responses.c
        query = select(schema.responses).where(table.conversation_id == conversation_id)
        return await self._first(query.order_by(table.created_at.desc()).limit(1))

    async def set_over(self, response_id: str, last_seq: int, completed_at: float) -> None:
        """Stores the number of the last event of an answer, and when it came."""
        statement = update(schema.responses).where(schema.responses.c.id == response_id)
        statement = statement.values(last_seq=last_seq, completed_at=completed_at)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def delete(self, response_id: str) -> None:
        """Deletes an answer's id. The session and its events stay."""
        await self._delete(schema.responses, response_id)

    async def add_conversation(self, record: ConversationRecord) -> None:
        """Stores the name of a conversation."""
        statement = insert(schema.conversations).values(**_values(record))
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def get_conversation(self, conversation_id: str) -> ConversationRecord | None:
        """Returns a conversation, None if there is none of that id."""
        query = select(schema.conversations).where(schema.conversations.c.id == conversation_id)
        row = await self._row(query)
        return ConversationRecord(**row) if row else None

    async def delete_conversation(self, conversation_id: str) -> None:
        """Deletes the name of a conversation. Its answers stay."""
        await self._delete(schema.conversations, conversation_id)

    async def _delete(self, table: Table, row_id: str) -> None:
        statement = delete(table).where(table.c.id == row_id)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def _first(self, query: Select[Any]) -> ResponseRecord | None:
        row = await self._row(query)
        return ResponseRecord(**row) if row else None

    async def _row(self, query: Select[Any]) -> dict[str, Any] | None:
        row = await self._database.read(lambda connection: connection.execute(query).mappings().first())
        return {**row, "body": json.loads(row["body"])} if row else None


def _values(record: ResponseRecord | ConversationRecord) -> dict[str, Any]:
    return {**asdict(record), "body": json.dumps(record.body)}
