"""The messages of a session as they are in the store, and their deletion."""

from __future__ import annotations

from gateway.store import Store


async def message_bodies(store: Store, session: str) -> list[str]:
    """Return a session's whole history as JSON texts, in order."""
    return [row.body for row in await store.messages.rows(session)]


async def delete_session(store: Store, session: str) -> None:
    """Delete a session with everything that it has left."""
    await store.sessions.delete(session)
    while await store.sessions.delete_part(session):
        pass
