"""How an ACP run ended: the answer to its prompt as usage, error and `session_end`; pure."""

from __future__ import annotations

from typing import Any

from acp.schema import PromptResponse

from drivers.contract.events import Error, OutputEvent, SessionEnd, Usage

ENDS = {
    "end_turn": SessionEnd(exit_code=0),
    "max_tokens": SessionEnd(exit_code=1, stop_reason="max_tokens"),
    "refusal": SessionEnd(exit_code=1, stop_reason="refusal"),
    "cancelled": SessionEnd(exit_code=130, stop_reason="cancelled"),
}


def run_end(response: PromptResponse, title: str) -> list[OutputEvent]:
    """The last events of a run that the agent has answered."""
    usage = usage_of(response)
    end = ENDS.get(response.stop_reason)
    if end is None:
        # `max_turn_requests`: the work is not done, and no protocol of the gateway's has another word for it.
        return [*usage, *failure(f"{title} stopped at its limit of model requests in one turn", interrupted=False)]
    return [*usage, end]


def failure(message: str, *, interrupted: bool) -> list[OutputEvent]:
    """The end of a run that went wrong; one that was interrupted has nothing to explain."""
    if interrupted:
        return [SessionEnd(exit_code=130, stop_reason="cancelled")]
    return [Error(message=message), SessionEnd(exit_code=1, stop_reason="error")]


def usage_of(response: PromptResponse) -> list[OutputEvent]:
    """The turn's tokens: the protocol's own field, or the place where gemini puts them."""
    usage = response.usage
    if usage is not None:
        return [
            Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read=usage.cached_read_tokens or 0,
                cache_write=usage.cached_write_tokens or 0,
            )
        ]
    counts = _at(response.field_meta, "quota", "token_count")
    if not isinstance(counts, dict):
        return []
    tokens = [counts.get(name) for name in ("input_tokens", "output_tokens")]
    if not all(isinstance(count, int) for count in tokens) or not any(tokens):
        return []
    return [Usage(input_tokens=tokens[0] or 0, output_tokens=tokens[1] or 0)]


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
