"""Compaction of a conversation by its agent's CLI: stores the summary, and returns what the agent still works from."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.contract.events import Compacted
from drivers.contract.messages import Message, SystemMessage, ToolMessage, UserMessage
from gateway.store import Store


async def store_compaction(store: Store, session_id: str, event: Compacted) -> None:
    """Stores a compaction. The messages before it must be stored already. Stores nothing for the log of a task."""
    if event.summary:
        await store.compactions.set(session_id, event.kept, event.summary)


def compacted(history: Sequence[Message], compaction: tuple[int, str] | None) -> list[Message]:
    """Returns the history that the agent still works from.

    `compaction` is the position of the first message that was kept, and the summary of those before it; None for the whole
    history. The summary becomes a user message, as in the CLI's own conversation. System messages are not summarized.
    """
    if compaction is None:
        return list(history)
    first, summary = compaction
    # A tool result is kept together with its call.
    while 0 < first < len(history) and isinstance(history[first], ToolMessage):
        first -= 1
    system = [message for message in history[:first] if isinstance(message, SystemMessage)]
    return [*system, UserMessage(content=summary), *history[first:]]
