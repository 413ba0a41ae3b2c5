"""What was decided about a tool call, by whom and why. The audit records it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

CLIENT = "client"
"""The decider where it is not the gateway."""
TIME_LIMIT = "limits.answer"
"""The decider of calls that the client has not answered in time."""
CLI = "cli"
"""The decider of calls that no rule decides, in a session whose mode is one of the CLI's own."""
DENIED = "Tool call denied"
"""The result of a denied call, as the agent and the client get it; the reason follows."""

Outcome = Literal[
    "trusted", "allowed", "denied", "asked", "granted", "refused", "answered", "timed_out", "cancelled", "configured", "left"
]


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about a call. `by` is `trust`, a rule as `policy[N]`, `default`, `client`, `limits.answer` or `cli`.

    `left` is a call that the gateway has left to the CLI, which runs it, denies it or asks about it by its own rules.

    An MCP server that a client brings is a decision too: `configured` by `client`, or `denied` by `mcp`. Then `tool` is
    `mcp server`, and `call_id` is the server's name.
    """

    outcome: Outcome
    by: str
    tool: str
    call_id: str
    arguments: Any = None
    reason: str | None = None


def denial(reason: str | None) -> str:
    """The result of a call that was denied for this reason."""
    return f"{DENIED}: {reason}" if reason else DENIED
