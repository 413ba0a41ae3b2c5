"""The texts that a model and a client read as the result of a call that did not run."""

from __future__ import annotations

DENIED = "Tool call denied"
CANCELLED = "Tool call cancelled"
NO_RESULT = "The application allowed this call, but gave no result."
NOT_ENABLED = "it is not enabled in this session"
"""The reason of a denial: the session does not list the tool."""

NO_RUN = "no run is active, so no client can see this call; it may be made again in the next run"
"""The reason of a denial: the agent works without a prompt, such as on a background task."""


def denied(reason: str | None = None) -> str:
    """The result of a call that was denied, with the reason if there is one."""
    return f"{DENIED}: {reason}" if reason else DENIED


HOOK_REFUSED = "The prompt was refused by a hook"
"""The beginning of the text of a run whose prompt the model does not get."""
HOOK_STOPPED = "A hook has stopped the turn"
"""The beginning of the text of a run that a hook has ended."""
