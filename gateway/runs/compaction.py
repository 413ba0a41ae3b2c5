"""What is left of a conversation after its agent's CLI has compacted it: the summary as the CLI gave it, and what came after."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.contract.events import Compacted
from drivers.contract.messages import Message, SystemMessage, ToolMessage, UserMessage
from gateway.store import Store


async def note_compaction(store: Store, session_id: str, event: Compacted) -> None:
    """Remember a compaction. Its messages so far must be stored; for a log that is no session's nothing is done."""
    if event.summary:
        await store.compact(session_id, event.kept, event.summary)


def compacted(history: Sequence[Message], compaction: tuple[int, str] | None) -> list[Message]:
    """The history that the agent still works from: all of it, unless there was a compaction (first kept message, summary).

    The summary is a user's message, as it is in the CLI's own conversation; system messages are never summed up.
    """
    if compaction is None:
        return list(history)
    first, summary = compaction
    # A result is nothing without its call.
    while 0 < first < len(history) and isinstance(history[first], ToolMessage):
        first -= 1
    system = [message for message in history[:first] if isinstance(message, SystemMessage)]
    return [*system, UserMessage(content=summary), *history[first:]]
