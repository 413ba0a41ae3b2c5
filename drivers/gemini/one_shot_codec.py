"""Translates the output of one gemini task (`--output-format stream-json`). Recorded with gemini 0.61.0 in
tests/transcripts/gemini; also reads the shapes of the OutputEvent page.

The CLI can exit with code 0 before its last lines are written; only its `result` line shows that the task is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from drivers.codecs.json_lines import Events, Handler
from drivers.codecs.task_codec import TaskCodec
from drivers.codecs.tool_calls import Call
from drivers.contract.events import (
    AgentToken,
    Error,
    NativeSession,
    OutputEvent,
    SessionEnd,
    Usage,
)

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


class GeminiTaskCodec(TaskCodec):
    """The lines of one task."""

    title = "gemini"

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        reason = EXIT_CODES.get(exit_code, f"it ended with exit code {exit_code} before it wrote its result")
        self.protocol_error = self.protocol_error or f"gemini: {reason}"
        return super().exited(exit_code, stderr)

    def _init(self, native: dict[str, Any]) -> list[OutputEvent]:
        self.native_id = str(native["session_id"])
        return [NativeSession(native_id=self.native_id, model=native.get("model"))]

    def _message(self, native: dict[str, Any]) -> Events:
        if native["role"] == "user":
            return []
        return [AgentToken(text=native["content"])] if native["content"] else []

    def _tool_use(self, native: dict[str, Any]) -> list[OutputEvent]:
        call_id, name, given = native["tool_id"], native["tool_name"], native.get("parameters")
        detail = given.get("command") or given.get("file_path") if isinstance(given, dict) else None
        return self.calls.start(Call(call_id, name, given, detail))

    def _tool_result(self, native: dict[str, Any]) -> list[OutputEvent]:
        call_id, failed = native["tool_id"], native["status"] != "success"
        error = native.get("error")
        output = native.get("output")
        if failed and isinstance(error, dict):
            output = error.get("message") or output
        return self.calls.end(call_id, "" if output is None else output, failed=failed)

    def _error(self, native: dict[str, Any]) -> Events:
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

    def plain(self, native: dict[str, Any]) -> Events:
        # `{"text": …}`, or a response of the API, unchanged.
        if "type" in native:
            return None
        text = native["text"] if "text" in native else native["candidates"][0]["content"]["parts"][0]["text"]
        if not isinstance(text, str):
            return None
        return [AgentToken(text=text)] if text else []

    handlers: ClassVar[Mapping[str, Handler]] = {
        "init": _init,
        "message": _message,
        "tool_use": _tool_use,
        "tool_result": _tool_result,
        "error": _error,
        "result": _result,
    }


def usage_of(stats: Any) -> list[OutputEvent]:
    """The run's tokens; the CLI's `input_tokens` includes those that the cache served."""
    if not isinstance(stats, dict):
        return []
    given, written, cached = (stats.get(name) for name in ("input_tokens", "output_tokens", "cached"))
    if not isinstance(given, int) or not isinstance(written, int):
        return []
    cached = cached if isinstance(cached, int) else 0
    return [Usage(input_tokens=max(given - cached, 0), output_tokens=written, cache_read=cached)]
