"""The end of a codex turn: its error becomes a stop reason, its token counters usage. No state. Measured with codex 0.169.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from drivers.codecs.rate_limits import limit_error
from drivers.contract.events import ContextUse, Error, OutputEvent, RateLimit, SessionEnd, StopReason, Usage

Tokens = Mapping[str, int]
COUNTERS = ("input", "cached_input", "cache_write_input", "output", "reasoning_output")
NO_TOKENS: Tokens = dict.fromkeys(COUNTERS, 0)
LIMIT_ERRORS = ("usageLimitExceeded", "rateLimitExceeded")
REFUSALS = frozenset({"cyberPolicy", "misalignmentPolicyViolation"})


def tokens(native: Any, *, camel: bool = False) -> Tokens:
    """The counters of a native usage, `input` with what the cache served."""
    found = {}
    for name in COUNTERS:
        parts = f"{name}_tokens".split("_")
        key = parts[0] + "".join(part.title() for part in parts[1:]) if camel else "_".join(parts)
        value = native.get(key) if isinstance(native, dict) else None
        found[name] = value if isinstance(value, int) else 0
    return found


def usage_of(now: Tokens, before: Tokens | None = None) -> Usage:
    """What has been used between two states of the counters."""
    used = {name: max(0, now[name] - (before[name] if before else 0)) for name in COUNTERS}
    cached, written = used["cached_input"], used["cache_write_input"]
    return Usage(
        input_tokens=max(0, used["input"] - cached - written),
        output_tokens=used["output"],
        cache_read=cached,
        cache_write=written,
        reasoning_tokens=used["reasoning_output"],
    )


def context_of(native: Any) -> list[OutputEvent]:
    """How full the model's context is after its last answer."""
    size, last = native.get("modelContextWindow"), native["last"]
    used = last.get("totalTokens") if isinstance(last, dict) else None
    if not isinstance(size, int) or not isinstance(used, int) or size <= 0 or used < 0:
        return []
    return [ContextUse(used=used, size=size)]


class RateLimits:
    """The usage limits of the account, by the CLI's reports, each of which may omit what has not changed."""

    def __init__(self) -> None:
        self._windows: dict[str, Mapping[str, Any]] = {}
        self._reached = False
        self._reported: RateLimit | None = None

    def read(self, snapshot: Mapping[str, Any]) -> list[OutputEvent]:
        """The event of `account/rateLimits/updated`, if anything has changed."""
        for name in ("primary", "secondary"):
            if isinstance(snapshot.get(name), dict):
                self._windows[name] = snapshot[name]
        self._reached = snapshot.get("rateLimitReachedType") is not None
        limit = self._fullest()
        if limit is None or limit == self._reported:
            return []
        self._reported = limit
        return [limit]

    def failure(self, error: Any) -> tuple[list[OutputEvent], SessionEnd]:
        """The last events of a turn that has failed with this native error, with the time at which a limit resets."""
        last, end = failure(error)
        info = error.get("codexErrorInfo") if isinstance(error, dict) else None
        if info not in LIMIT_ERRORS or self._reported is None:
            return last, end
        return [limit_error(event.message, self._reported) if isinstance(event, Error) else event for event in last], end

    def _fullest(self) -> RateLimit | None:
        """The window of which the most is used, and of two full ones that which resets last."""
        used = {name: window["usedPercent"] for name, window in self._windows.items()}
        if not used:
            return None
        name = max(used, key=lambda name: (min(used[name], 100), self._windows[name].get("resetsAt") or 0))
        rejected = self._reached or used[name] >= 100
        return RateLimit(
            status="rejected" if rejected else "allowed",
            limit=name,
            utilization=used[name] / 100,
            resets_at=self._windows[name].get("resetsAt"),
        )


def failure(error: Any) -> tuple[list[OutputEvent], SessionEnd]:
    """The last events of a turn that has failed with this native error."""
    members = error if isinstance(error, dict) else {}
    message = plain_message(str(members.get("message") or "it failed without a message"))
    end = SessionEnd(exit_code=1, stop_reason=_stop_reason(message, members.get("codexErrorInfo")))
    return [Error(message=f"codex: {message}")], end


def _stop_reason(message: str, info: Any) -> StopReason:
    if "reason: max_output_tokens" in message:
        return "max_tokens"
    if "reason: content_filter" in message or (isinstance(info, str) and info in REFUSALS):
        return "refusal"
    return "error"


def plain_message(message: str) -> str:
    """An error's text; the model server's own JSON body, which the CLI passes on as it came, as its message."""
    if not message.startswith("{"):
        return message
    try:
        body = from_json(message)
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return message
