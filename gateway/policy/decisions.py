"""What was decided about a tool call, by whom and why. The audit records it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

CLIENT = "client"
"""Who decides where it is not the gateway."""

Outcome = Literal["trusted", "allowed", "denied", "asked", "granted", "refused", "answered", "timed_out", "cancelled"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided of a call, `by` whom: the client's `trust`, a rule as `policy[N]`, the client, `limits.answer`."""

    outcome: Outcome
    by: str
    tool: str
    call_id: str
    arguments: Any = None
    reason: str | None = None
