"""Compactions of a conversation, for clients that say that they show them (`session.compaction`); pure.

The protocol's package has neither the capability nor the update (0.12): both are plain data here.
"""

from __future__ import annotations

from typing import Any

from drivers.contract.events import Compacted


def takes_compactions(initialize: Any) -> bool:
    """Whether the client says so in `initialize`: `{}` does, null and anything else does not."""
    found = initialize
    for name in ("clientCapabilities", "session", "compaction"):
        found = found.get(name) if isinstance(found, dict) else None
    return isinstance(found, dict)


def compaction_update(seq: int, event: Compacted) -> dict[str, Any]:
    """The update of a compaction that is over; `seq`, the event's number, makes its id."""
    summary = {"summary": [{"type": "text", "text": event.summary}]} if event.summary else {}
    return {"sessionUpdate": "compaction_update", "compactionId": f"compaction-{seq}", "status": "completed", **summary}
