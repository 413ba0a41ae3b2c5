"""The stop reasons of AAP for the last event of a turn."""

from __future__ import annotations

from drivers.contract.events import Awaiting, SessionEnd
from gateway.protocols.aap.schema import StopReason

STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    "error": "error",
    # AAP has no stop reason for a cancelled run; it is over, and nothing went wrong.
    "cancelled": "end_turn",
}


def stop_reason(event: Awaiting | SessionEnd) -> StopReason:
    """Return the stop reason of AAP for the last event of a turn."""
    return "tool_use" if isinstance(event, Awaiting) else STOP_REASONS[event.stop_reason]
