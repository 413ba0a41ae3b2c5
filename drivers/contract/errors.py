"""The errors that a driver raises. Their texts are for users: what is missing, and what to do."""

from __future__ import annotations

# DriverError            something outside the gateway is not as it must be; the text has what to do
# ├── AgentUnavailable   the agent cannot start here: no program, no login, a broken folder
# ├── AgentGone          its process has ended; a fresh one is needed
# ├── InputFull          it has not read what it was sent before
# └── ResumeFailed       the native session to resume does not exist any more


class DriverError(Exception):
    """A failure of an agent, with a text for users."""


class AgentUnavailable(DriverError):
    """The agent cannot be started: its program or its login is missing."""


class AgentGone(DriverError):
    """The agent's process has ended."""


class InputFull(DriverError):
    """The agent has not read what it was sent before, and gets nothing more until it has."""


class ResumeFailed(DriverError):
    """The native session that was to be resumed does not exist any more."""
