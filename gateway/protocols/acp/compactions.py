"""Updates about compactions of a conversation and notices, for clients with these capabilities of `session`. Does no I/O.

The `acp` package has neither the capabilities nor the updates (0.12.1), so all are plain data here.
"""

from __future__ import annotations

from typing import Any

from drivers.contract.events import Compacted, Notice


def supports(params: Any, capability: str) -> bool:
    """Whether the parameters of `initialize` have this capability of `session`. An object, `{}` included, declares it."""
    value = params
    for name in ("clientCapabilities", "session", capability):
        value = value.get(name) if isinstance(value, dict) else None
    return isinstance(value, dict)


def notice_update(event: Notice) -> dict[str, Any]:
    """Return the update about a notice, whose first line is the title."""
    title, _, description = event.text.partition("\n")
    more = {"description": description} if description else {}
    return {"sessionUpdate": "notice", "severity": event.severity, "title": title, **more}


def compaction_update(seq: int, event: Compacted) -> dict[str, Any]:
    """Return the update about a completed compaction. Its id contains `seq`, the number of the event."""
    summary = {"summary": [{"type": "text", "text": event.summary}]} if event.summary else {}
    return {"sessionUpdate": "compaction_update", "compactionId": f"compaction-{seq}", "status": "completed", **summary}
