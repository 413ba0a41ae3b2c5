"""What is stated of a usage limit in the error of a run that has ended because of it."""

from __future__ import annotations

from datetime import UTC, datetime

from drivers.contract.events import Error, RateLimit


def limit_error(message: str, limit: RateLimit | None) -> Error:
    """The error of a run that a usage limit has ended. It names the time at which the limit resets, where that is known."""
    if limit is None or limit.resets_at is None:
        return Error(message=message)
    time = datetime.fromtimestamp(limit.resets_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Error(message=f"{message} (the limit resets at {time})", resets_at=limit.resets_at)
