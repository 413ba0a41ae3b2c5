"""The texts that a model and a client read as the result of a call that did not run."""

from __future__ import annotations

DENIED = "Tool call denied"
CANCELLED = "Tool call cancelled"
NO_RESULT = "The application allowed this call, but gave no result."
NOT_ENABLED = "it is not enabled in this session"
"""The reason of a denial: the session does not list the tool."""


def denied(reason: str | None = None) -> str:
    """The result of a call that was denied, with the reason if there is one."""
    return f"{DENIED}: {reason}" if reason else DENIED
