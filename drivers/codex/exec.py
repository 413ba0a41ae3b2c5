"""The codec of `codex exec --json`, one task. It reads the lines of codex 0.169.0 (tests/transcripts/codex), and the line
that the OutputEvent page shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivers.codecs.task_codec import TaskCodec
from drivers.codex.items import call_of, exit_code_of, outcome_of, snake
from drivers.codex.turn_result import NO_TOKENS, failure, tokens, usage_of
from drivers.contract.events import AgentToken, MessageEnd, NativeSession, OutputEvent, SessionEnd, Thinking
from drivers.contract.tool_denials import HOOK_REFUSED

NO_MODEL = f"{HOOK_REFUSED}, or codex has ended it for another reason that it does not report: the model was not asked"
RETRYING, FATAL = "Reconnecting...", "Error: "


class CodexExecCodec(TaskCodec):
    """The lines of one task."""

    title = "codex"

    def __init__(self) -> None:
        super().__init__()
        self._last_error: str | None = None
        self._has_items = False
        self._failure: list[OutputEvent] = []

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self.run_result is None and exit_code:
            # An error before the turn begins, such as a task that is too long, is on standard error only.
            fatal = [line.removeprefix(FATAL) for line in stderr if line.startswith(FATAL)]
            if message := self._last_error or "; ".join(fatal):
                self._failure, self.run_result = failure({"message": message})
        events = super().exited(exit_code, stderr)
        return [*events[:-1], *self._failure, events[-1]] if events else []

    def _thread(self, message: dict[str, Any]) -> list[OutputEvent]:
        self.native_id = message["thread_id"]
        return [NativeSession(native_id=self.native_id)]

    def _item(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        item, done = snake(message["item"]), message["type"] == "item.completed"
        self._has_items = True
        kind = item["type"]
        if kind in ("agent_message", "reasoning"):
            return self._text(kind, item["text"]) if done else []
        if kind == "error":
            # A warning, such as that of a model that is not in the CLI's catalogue.
            return None
        call = call_of(item)
        if call is None:
            return None
        events = self.calls.start(call)
        if done:
            output, failed = outcome_of(item)
            events += self.calls.end(call.id, output, failed=failed, exit_code=exit_code_of(item))
        return events

    def _text(self, kind: str, text: str) -> list[OutputEvent]:
        if kind == "reasoning":
            return [Thinking(text=text)] if text else []
        return [AgentToken(text=text), MessageEnd()] if text else []

    def _turn_completed(self, message: dict[str, Any]) -> list[OutputEvent]:
        self._last_error = None
        used = tokens(message.get("usage"))
        if not self._has_items and isinstance(message.get("usage"), dict) and used == NO_TOKENS:
            # A hook of the user's settings has refused the task, whose reason is in no line of 0.171.0.
            self.run_result = SessionEnd(exit_code=1, stop_reason="refusal", prompt_kept=False)
            return [AgentToken(text=NO_MODEL), MessageEnd()]
        self.run_result = SessionEnd(exit_code=0)
        return [usage_of(used)]

    def _turn_failed(self, message: dict[str, Any]) -> list[OutputEvent]:
        self._failure, self.run_result = failure(message["error"])
        return []

    def _error(self, message: dict[str, Any]) -> list[OutputEvent]:
        # The last error is also in `turn.failed`; those before it are attempts that the CLI repeats.
        text = message["message"]
        self._last_error = text.removeprefix(RETRYING).strip() if isinstance(text, str) else str(text)
        return []

    def plain(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        # One result without a thread, whose `text` is the answer.
        text = message.get("text")
        if not isinstance(text, str) or self.native_id is not None:
            return None
        return [AgentToken(text=text), MessageEnd()] if text else []

    def _ignore(self, message: dict[str, Any]) -> list[OutputEvent]:
        return []

    handlers = {
        "thread.started": _thread,
        "turn.started": _ignore,
        "turn.completed": _turn_completed,
        "turn.failed": _turn_failed,
        "item.started": _item,
        "item.updated": _item,
        "item.completed": _item,
        "error": _error,
    }
