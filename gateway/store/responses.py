"""Queries about answers that clients name by ids of their own, and about the names of conversations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from gateway.store.database import Database
from gateway.store.rows import ConversationRecord, ResponseRecord
from gateway.store.sql import Connection, Parameters, columns, insert

Record = TypeVar("Record", ResponseRecord, ConversationRecord)

_GIVEN = ", ".join(f":{field.name}" for field in fields(ResponseRecord))
_INSERT = f"INSERT INTO responses ({columns(ResponseRecord)}) SELECT {_GIVEN} FROM sessions WHERE id = :session_id"
_SET_OVER = "UPDATE responses SET last_seq = :last_seq, completed_at = :completed_at WHERE id = :id"


class ResponseRepository:
    """Answers by their ids, and conversations by theirs. A session is deleted with its answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: ResponseRecord) -> None:
        """Stores an answer. Does nothing if its session has been deleted."""
        values = _values(record)
        await self._database.write(lambda connection: connection.execute(_INSERT, values))

    async def get(self, response_id: str) -> ResponseRecord | None:
        """Returns an answer, None if there is none of that id."""
        return await self._first("id = :id", {"id": response_id})

    async def newest(self, conversation_id: str) -> ResponseRecord | None:
        """Returns the newest answer of a conversation, None if it has none."""
        return await self._first("conversation_id = :id ORDER BY created_at DESC LIMIT 1", {"id": conversation_id})

    async def set_over(self, ends: Mapping[str, tuple[int, float]]) -> None:
        """Stores the numbers of the last events of answers, by their ids, and when they came."""

        def transaction(connection: Connection) -> None:
            for response_id, (last_seq, completed_at) in ends.items():
                connection.execute(_SET_OVER, {"id": response_id, "last_seq": last_seq, "completed_at": completed_at})

        await self._database.write(transaction)

    async def delete(self, response_id: str) -> None:
        """Deletes an answer's id. The session and its events stay."""
        statement, values = "DELETE FROM responses WHERE id = :id", {"id": response_id}
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def add_conversation(self, record: ConversationRecord) -> None:
        """Stores the name of a conversation."""
        values = _values(record)
        await self._database.write(lambda connection: connection.execute(insert("conversations", values), values))

    async def get_conversation(self, conversation_id: str) -> ConversationRecord | None:
        """Returns a conversation, None if there is none of that id."""
        query = f"SELECT {columns(ConversationRecord)} FROM conversations WHERE id = :id"
        row = await self._database.read(lambda connection: connection.first(query, {"id": conversation_id}))
        return _decoded(ConversationRecord(*row)) if row else None

    async def update_conversation(self, record: ConversationRecord) -> None:
        """Replaces the body of a conversation."""
        statement, values = "UPDATE conversations SET body = :body WHERE id = :id", _values(record)
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def delete_conversation(self, conversation_id: str) -> None:
        """Deletes the name of a conversation. Its answers stay."""
        statement, values = "DELETE FROM conversations WHERE id = :id", {"id": conversation_id}
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def _first(self, condition: str, values: Parameters) -> ResponseRecord | None:
        query = f"SELECT {columns(ResponseRecord)} FROM responses WHERE {condition}"
        row = await self._database.read(lambda connection: connection.first(query, values))
        return _decoded(ResponseRecord(*row)) if row else None


def _decoded(record: Record) -> Record:
    """Returns a record whose body is still JSON text with its data."""
    return replace(record, body=json.loads(str(record.body)))


def _values(record: ResponseRecord | ConversationRecord) -> dict[str, Any]:
    # Not `asdict`, which copies the body.
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {**values, "body": json.dumps(record.body)}
