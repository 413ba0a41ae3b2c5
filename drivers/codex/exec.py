"""The lines of `codex exec --json`, one task: as printed by codex 0.169.0 (tests/transcripts/codex), and as a single result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from drivers.codex.items import Call, call_of, outcome_of, snake
from drivers.codex.result import failure, tokens, usage_of
from drivers.contract.codec import Codec
from drivers.contract.events import AgentToken, MessageEnd, NativeSession, OutputEvent, SessionEnd, Stdout, Thinking
from drivers.contract.lines import parse_object, text_line

RETRYING, FATAL = "Reconnecting...", "Error: "


class CodexExecCodec(Codec):
    """One task; its run ends with the process."""

    title = "codex"

    def __init__(self) -> None:
        super().__init__()
        self.phase = "running"
        self._open: dict[str, Call] = {}
        self._last_error: str | None = None
        self._failure: list[OutputEvent] = []

    def receive(self, line: bytes) -> list[OutputEvent]:
        native = parse_object(line)
        if native is None:
            return [Stdout(line=text_line(line))] if line.strip() else []
        kind = native.get("type")
        read = _READERS.get(kind) if isinstance(kind, str) else None
        try:
            events = read(self, native) if read else self._result(native)
        except (KeyError, TypeError, ValueError, AttributeError):
            # A known type in a shape that is not: shown, as any other line that is not understood.
            events = None
        return [Stdout(line=text_line(line))] if events is None else events

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self.run_result is None and exit_code:
            # What stops it before a turn has begun, such as a task that is too long, is told on standard error only.
            fatal = [line.removeprefix(FATAL) for line in stderr if line.startswith(FATAL)]
            if said := self._last_error or "; ".join(fatal):
                self._failure, self.run_result = failure({"message": said})
        left: list[OutputEvent] = [call.closed(failed=True) for call in self._open.values()]
        self._open.clear()
        events = super().exited(exit_code, stderr)
        return [*left, *events[:-1], *self._failure, events[-1]] if events else []

    def _thread(self, native: dict[str, Any]) -> list[OutputEvent]:
        self.native_id = native["thread_id"]
        return [NativeSession(native_id=self.native_id)]

    def _item(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        item, done = snake(native["item"]), native["type"] == "item.completed"
        kind = item["type"]
        if kind in ("agent_message", "reasoning"):
            return self._text(kind, item["text"]) if done else []
        if kind == "error":
            # A warning, such as that of a model that is not in the CLI's catalogue.
            return None
        call = call_of(item)
        return None if call is None else self._call(call, item, done)

    def _text(self, kind: str, text: str) -> list[OutputEvent]:
        if kind == "reasoning":
            return [Thinking(text=text)] if text else []
        return [AgentToken(text=text), MessageEnd()] if text else []

    def _call(self, call: Call, item: dict[str, Any], done: bool) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        if call.id not in self._open:
            self._open[call.id] = call
            events.append(call.started())
        if done:
            output, failed = outcome_of(item)
            events += self._open.pop(call.id).ended(output, failed=failed)
        return events

    def _turn_completed(self, native: dict[str, Any]) -> list[OutputEvent]:
        self._last_error = None
        self.run_result = SessionEnd(exit_code=0)
        return [usage_of(tokens(native.get("usage")))]

    def _turn_failed(self, native: dict[str, Any]) -> list[OutputEvent]:
        self._failure, self.run_result = failure(native["error"])
        return []

    def _error(self, native: dict[str, Any]) -> list[OutputEvent]:
        # The last one is told by `turn.failed` too; those before it are attempts that the CLI repeats.
        message = native["message"]
        self._last_error = message.removeprefix(RETRYING).strip() if isinstance(message, str) else str(message)
        return []

    def _result(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        """The older form: a single result-shaped event a turn, whose `text` is the answer."""
        text = native.get("text")
        if not isinstance(text, str):
            return None
        self.run_result = SessionEnd(exit_code=0)
        return [AgentToken(text=text), MessageEnd()] if text else []

    def _ignore(self, native: dict[str, Any]) -> list[OutputEvent]:
        return []


_READERS: dict[str, Callable[[CodexExecCodec, dict[str, Any]], list[OutputEvent] | None]] = {
    "thread.started": CodexExecCodec._thread,
    "turn.started": CodexExecCodec._ignore,
    "turn.completed": CodexExecCodec._turn_completed,
    "turn.failed": CodexExecCodec._turn_failed,
    "item.started": CodexExecCodec._item,
    "item.updated": CodexExecCodec._item,
    "item.completed": CodexExecCodec._item,
    "error": CodexExecCodec._error,
}
