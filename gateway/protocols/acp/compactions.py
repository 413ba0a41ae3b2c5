"""Updates about compactions of a conversation, for clients with the capability `session.compaction`. Does no I/O.

The `acp` package has neither the capability nor the update (0.12.1), so both are plain data here.
"""

from __future__ import annotations

from typing import Any

from drivers.contract.events import Compacted


def supports_compactions(params: Any) -> bool:
    """Whether the parameters of `initialize` have the capability. An object, `{}` included, declares it."""
    value = params
    for name in ("clientCapabilities", "session", "compaction"):
        value = value.get(name) if isinstance(value, dict) else None
    return isinstance(value, dict)


def compaction_update(seq: int, event: Compacted) -> dict[str, Any]:
    """Return the update about a completed compaction. Its id contains `seq`, the number of the event."""
    summary = {"summary": [{"type": "text", "text": event.summary}]} if event.summary else {}
    return {"sessionUpdate": "compaction_update", "compactionId": f"compaction-{seq}", "status": "completed", **summary}
