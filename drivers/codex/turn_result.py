"""The end of a codex turn: its error becomes a stop reason, its token counters usage. No state. Measured with codex 0.169.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from drivers.contract.events import ContextUse, Error, OutputEvent, SessionEnd, StopReason, Usage

Tokens = Mapping[str, int]
COUNTERS = ("input", "cached_input", "cache_write_input", "output")
NO_TOKENS: Tokens = dict.fromkeys(COUNTERS, 0)
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
    )


def context_of(native: Any) -> list[OutputEvent]:
    """How full the model's context is after its last answer."""
    size, last = native.get("modelContextWindow"), native["last"]
    used = last.get("totalTokens") if isinstance(last, dict) else None
    if not isinstance(size, int) or not isinstance(used, int) or size <= 0 or used < 0:
        return []
    return [ContextUse(used=used, size=size)]


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
