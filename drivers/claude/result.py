"""How a claude turn ended: its `result` line as usage, error and `session_end`. Measured with claude 2.1.329."""

from __future__ import annotations

from typing import Any

from drivers.contract.events import ContextUse, Error, OutputEvent, SessionEnd, Usage


def usage_of(native: dict[str, Any]) -> list[OutputEvent]:
    """This turn's tokens. `model_usage_since_last_result` counts sub-agents too; `usage` does not, `modelUsage` adds up."""
    models = native.get("model_usage_since_last_result")
    if isinstance(models, dict) and models:
        return [
            Usage(
                input_tokens=_sum(models, "inputTokens"),
                output_tokens=_sum(models, "outputTokens"),
                cache_read=_sum(models, "cacheReadInputTokens"),
                cache_write=_sum(models, "cacheCreationInputTokens"),
            )
        ]
    usage = native.get("usage")
    if not isinstance(usage, dict):
        return []
    return [
        Usage(
            input_tokens=_int(usage.get("input_tokens")),
            output_tokens=_int(usage.get("output_tokens")),
            cache_read=_int(usage.get("cache_read_input_tokens")),
            cache_write=_int(usage.get("cache_creation_input_tokens")),
        )
    ]


def context_of(native: dict[str, Any], used: int | None, model: str | None) -> list[OutputEvent]:
    """How full the model's context is. The window stands with the model's own figures, under a name with or without its date."""
    models = native.get("modelUsage")
    if not isinstance(models, dict) or not used:
        return []
    known = {name: figures.get("contextWindow") for name, figures in models.items() if isinstance(figures, dict)}
    size = known.get(model or "") or next((size for size in known.values() if len(known) == 1), None)
    return [ContextUse(used=used, size=size)] if isinstance(size, int) and size > 0 else []


def run_end(native: dict[str, Any], model_stop: str | None, *, interrupted: bool) -> tuple[list[OutputEvent], SessionEnd]:
    """The last events of a turn, and its end. `subtype: success` says nothing: `is_error` and `terminal_reason` do."""
    if not native.get("is_error"):
        return [], SessionEnd(exit_code=0, stop_reason="refusal" if native.get("stop_reason") == "refusal" else "end_turn")
    if interrupted and str(native.get("terminal_reason")).startswith("aborted"):
        return [], SessionEnd(exit_code=130, stop_reason="cancelled")
    telling: list[OutputEvent] = [Error(message=f"claude: {_said(native)}")]
    if native.get("stop_reason") == "refusal":
        return telling, SessionEnd(exit_code=1, stop_reason="refusal")
    if native.get("api_error") == "max_output_tokens" or (model_stop == "max_tokens" and native.get("api_error_status") is None):
        return telling, SessionEnd(exit_code=1, stop_reason="max_tokens")
    return telling, SessionEnd(exit_code=1, stop_reason="error")


def _said(native: dict[str, Any]) -> str:
    return str(native.get("result") or "; ".join(map(str, native.get("errors") or [])) or native.get("terminal_reason"))


def _sum(models: dict[str, Any], key: str) -> int:
    return sum(_int(model.get(key)) for model in models.values() if isinstance(model, dict))


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0
