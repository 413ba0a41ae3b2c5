"""Compaction of a conversation by its agent's CLI: stores the summary. gateway/runs/stored_history.py reads it."""

from __future__ import annotations

from drivers.contract.events import Compacted
from gateway.store import Store


async def store_compaction(store: Store, session_id: str, event: Compacted) -> None:
    """Stores a compaction. The messages before it must be stored already. Stores nothing for the log of a task."""
    if event.summary:
        await store.compactions.set(session_id, event.kept, event.summary)
