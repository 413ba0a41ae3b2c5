"""gemini's stream-json, as it prints it for one task. Shapes of gemini 0.61.0 (tests/transcripts/gemini) and an older one.

The CLI may end with exit code 0 though its last lines are missing; only its `result` line says that it is done.
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

LOG_IN = "run `gemini` once and log in, or set GEMINI_API_KEY"
EXITS = {
    41: f"it is not logged in: {LOG_IN}",
    42: "it was given no task that it could read",
    44: "its sandbox could not be started",
    52: "its settings are not valid",
    53: "it stopped at its limit of model requests in one session",
    54: "a tool could not be run",
    55: "the working folder is not trusted",
    130: "it was interrupted",
}
"""What the CLI's own exit codes mean. An API error's is its HTTP status, of which 8 bits are left: its line says more."""


class GeminiCodec(Codec):
    """The run is under way from the start, and ends with the process."""

    title = "gemini"

    def __init__(self) -> None:
        super().__init__()
        self.phase = "running"
        self._calls: dict[str, str] = {}
        self._failed = self._older = False

    def receive(self, line: bytes) -> list[OutputEvent]:
        native = parse_object(line)
        if native is None:
            return [Stdout(line=text_line(line))] if line.strip() else []
        read = _READERS.get(str(native.get("type"))) if "type" in native else GeminiCodec._old
        try:
            events = read(self, native) if read else None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            events = None
        return [Stdout(line=text_line(line))] if events is None else events

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self.phase != "running":
            return []
        if self._older and self.run_result is None and not exit_code:
            # The older form has no line that says that it is done.
            self.run_result = SessionEnd(exit_code=0)
        if self.run_result is not None:
            return super().exited(exit_code, stderr)
        self.phase = "ready"
        why = EXITS.get(exit_code, f"it ended with exit code {exit_code}, before it said that it was done")
        told: list[OutputEvent] = [Stderr(line=line) for line in stderr] if exit_code else []
        return [*told, Error(message=f"gemini: {why}"), SessionEnd(exit_code=exit_code or 1, stop_reason="error")]

    def _init(self, native: dict[str, Any]) -> list[OutputEvent]:
        self.native_id = str(native["session_id"])
        return [NativeSession(native_id=self.native_id, model=native.get("model"))]

    def _message(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        if native["role"] == "user":
            return []
        return [AgentToken(text=native["content"])] if native["content"] else []

    def _tool_use(self, native: dict[str, Any]) -> list[OutputEvent]:
        call_id, name, given = native["tool_id"], native["tool_name"], native.get("parameters")
        self._calls[call_id] = name
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
            ToolCall(id=call_id, name=self._calls.pop(call_id, ""), status=status),
        ]

    def _error(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        # A warning has no event of its own; an error that ends the run has its `result` line.
        return [Error(message=f"gemini: {native['message']}")] if native.get("severity") == "error" else None

    def _result(self, native: dict[str, Any]) -> list[OutputEvent]:
        events = usage_of(native.get("stats"))
        if native["status"] == "success":
            self.run_result = SessionEnd(exit_code=0)
            return events
        self.run_result = SessionEnd(exit_code=1, stop_reason="error")
        error = native.get("error")
        said = error.get("message") if isinstance(error, dict) else error
        return [*events, Error(message=f"gemini: {said or 'it failed and does not say why'}")]

    def _old(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        """`{"text": …}`, or a response of the API as it is."""
        text = native["text"] if "text" in native else native["candidates"][0]["content"]["parts"][0]["text"]
        if not isinstance(text, str):
            return None
        self._older = True
        return [AgentToken(text=text)] if text else []


def usage_of(stats: Any) -> list[OutputEvent]:
    """The run's tokens; `input_tokens` of the CLI's counts what the cache served as well."""
    if not isinstance(stats, dict):
        return []
    given, written, cached = (stats.get(name) for name in ("input_tokens", "output_tokens", "cached"))
    if not isinstance(given, int) or not isinstance(written, int):
        return []
    cached = cached if isinstance(cached, int) else 0
    return [Usage(input_tokens=max(given - cached, 0), output_tokens=written, cache_read=cached)]


_READERS: dict[str, Callable[[GeminiCodec, dict[str, Any]], list[OutputEvent] | None]] = {
    "init": GeminiCodec._init,
    "message": GeminiCodec._message,
    "tool_use": GeminiCodec._tool_use,
    "tool_result": GeminiCodec._tool_result,
    "error": GeminiCodec._error,
    "result": GeminiCodec._result,
}
