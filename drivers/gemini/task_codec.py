"""Translates the output of one gemini task (`--output-format stream-json`). Recorded with gemini 0.61.0 in
tests/transcripts/gemini; also reads the format of an older version.

The CLI can exit with code 0 before its last lines are written; only its `result` line shows that the task is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from drivers.contract.codec import Codec
from drivers.contract.events import (
    AgentToken,
    Error,
    NativeSession,
    OutputEvent,
    SessionEnd,
    Stderr,
    Stdout,
    ToolCall,
    ToolResult,
    Usage,
)
from drivers.contract.lines import parse_object, text_line

LOGIN_HINT = "run `gemini` once and log in, or set GEMINI_API_KEY"
EXIT_CODES = {
    41: f"it is not logged in: {LOGIN_HINT}",
    42: "it was given no task that it could read",
    44: "its sandbox could not be started",
    52: "its settings are not valid",
    53: "it stopped at its limit of model requests in one session",
    54: "a tool could not be run",
    55: "the working folder is not trusted",
    130: "it was interrupted",
}
"""The meaning of the CLI's own exit codes. After an API error the code is the low 8 bits of the HTTP status."""


class GeminiTaskCodec(Codec):
    """The run is active from the start, and ends with the process."""

    title = "gemini"

    def __init__(self) -> None:
        super().__init__()
        self.phase = "running"
        self._tool_names: dict[str, str] = {}
        self._older_format = False

    def receive(self, line: bytes) -> list[OutputEvent]:
        native = parse_object(line)
        if native is None:
            return [Stdout(line=text_line(line))] if line.strip() else []
        read = _READERS.get(str(native.get("type"))) if "type" in native else GeminiTaskCodec._older
        try:
            events = read(self, native) if read else None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            events = None
        return [Stdout(line=text_line(line))] if events is None else events

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self.phase != "running":
            return []
        if self._older_format and self.run_result is None and not exit_code:
            # The older format has no `result` line.
            self.run_result = SessionEnd(exit_code=0)
        if self.run_result is not None:
            return super().exited(exit_code, stderr)
        self.phase = "ready"
        reason = EXIT_CODES.get(exit_code, f"it ended with exit code {exit_code} before it wrote its result")
        errors: list[OutputEvent] = [Stderr(line=line) for line in stderr] if exit_code else []
        return [*errors, Error(message=f"gemini: {reason}"), SessionEnd(exit_code=exit_code or 1, stop_reason="error")]

    def _init(self, native: dict[str, Any]) -> list[OutputEvent]:
        self.native_id = str(native["session_id"])
        return [NativeSession(native_id=self.native_id, model=native.get("model"))]

    def _message(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        if native["role"] == "user":
            return []
        return [AgentToken(text=native["content"])] if native["content"] else []

    def _tool_use(self, native: dict[str, Any]) -> list[OutputEvent]:
        call_id, name, given = native["tool_id"], native["tool_name"], native.get("parameters")
        self._tool_names[call_id] = name
        detail = given.get("command") or given.get("file_path") if isinstance(given, dict) else None
        return [ToolCall(id=call_id, name=name, status="started", input=given, detail=detail)]

    def _tool_result(self, native: dict[str, Any]) -> list[OutputEvent]:
        call_id, failed = native["tool_id"], native["status"] != "success"
        status: Literal["completed", "failed"] = "failed" if failed else "completed"
        error = native.get("error")
        output = native.get("output")
        if failed and isinstance(error, dict):
            output = error.get("message") or output
        return [
            ToolResult(tool_call_id=call_id, output="" if output is None else output, is_error=failed),
            ToolCall(id=call_id, name=self._tool_names.pop(call_id, ""), status=status),
        ]

    def _error(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        # There is no event for a warning. An error that ends the run is in its `result` line.
        return [Error(message=f"gemini: {native['message']}")] if native.get("severity") == "error" else None

    def _result(self, native: dict[str, Any]) -> list[OutputEvent]:
        events = usage_of(native.get("stats"))
        if native["status"] == "success":
            self.run_result = SessionEnd(exit_code=0)
            return events
        self.run_result = SessionEnd(exit_code=1, stop_reason="error")
        error = native.get("error")
        message = error.get("message") if isinstance(error, dict) else error
        return [*events, Error(message=f"gemini: {message or 'it failed without an error message'}")]

    def _older(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        """`{"text": …}`, or a response of the API, unchanged."""
        text = native["text"] if "text" in native else native["candidates"][0]["content"]["parts"][0]["text"]
        if not isinstance(text, str):
            return None
        self._older_format = True
        return [AgentToken(text=text)] if text else []


def usage_of(stats: Any) -> list[OutputEvent]:
    """The run's tokens; the CLI's `input_tokens` includes those that the cache served."""
    if not isinstance(stats, dict):
        return []
    given, written, cached = (stats.get(name) for name in ("input_tokens", "output_tokens", "cached"))
    if not isinstance(given, int) or not isinstance(written, int):
        return []
    cached = cached if isinstance(cached, int) else 0
    return [Usage(input_tokens=max(given - cached, 0), output_tokens=written, cache_read=cached)]


_READERS: dict[str, Callable[[GeminiTaskCodec, dict[str, Any]], list[OutputEvent] | None]] = {
    "init": GeminiTaskCodec._init,
    "message": GeminiTaskCodec._message,
    "tool_use": GeminiTaskCodec._tool_use,
    "tool_result": GeminiTaskCodec._tool_result,
    "error": GeminiTaskCodec._error,
    "result": GeminiTaskCodec._result,
}
