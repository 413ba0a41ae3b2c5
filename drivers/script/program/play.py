"""What a turn knows while it is played: the session's settings, the conversation so far, and how texts are filled in."""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .wire import Wire

PLACEHOLDER = re.compile(r"\{\{([\w.-]+)\}\}|(\{\{)|\{([\w.-]+)\}")
"""An escaped placeholder, an escaped brace, or a placeholder; every other brace stands for itself."""
DELTA = 20
"""Characters of one delta where the scenario does not set it."""


class TurnOver(Exception):
    """The turn ends here, in this way."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.message = reason, message


class Play:
    """`texts` are all user texts of the session; the last one is the prompt that is answered.

    `earlier` are calls of this turn, with their results, that an earlier process has made: the turn goes on behind them.
    """

    def __init__(self, wire: Wire, opened: dict[str, Any], model: str) -> None:
        self.wire = wire
        self.options: dict[str, str] = opened.get("options") or {}
        self.system: str = opened.get("system") or ""
        self.model: str = opened.get("model") or model
        self.trusted = {str(tool["name"]): bool(tool.get("trust")) for tool in opened.get("tools") or ()}
        self.app_tools = frozenset(opened.get("app_tools") or ())
        self.directories: list[str] = opened.get("additional_directories") or []
        history = opened.get("history") or []
        self.texts = [text_of(m["content"]) for m in history if m.get("role") == "user"]
        self.earlier: list[tuple[str, str]] = []
        self._open_turn = _calls_of_last_turn(history)
        self.images = 0
        self.results: dict[str, str] = {}
        self.choices: dict[str, str] = {}
        self.last_result = ""
        self.parent: str | None = None
        self._calls = 0

    @property
    def fast(self) -> bool:
        return self.options.get("pace") == "fast"

    def begin(self, content: Any, *, go_on: bool = False) -> None:
        """A prompt has come, or the turn that the history ends in is to go on."""
        self.earlier = self._open_turn if go_on else []
        # Messages steered into the turn before are in the history that a new process is given, so they count here too.
        self.texts += [text_of(content) for content in self.wire.steered]
        self.wire.steered.clear()
        if not self.earlier or not self.texts:
            self.texts.append(text_of(content))
        self.images = sum(1 for block in content if block.get("type") == "image") if isinstance(content, list) else 0
        self.results, self.choices, self.last_result, self._calls, self.parent = {}, {}, "", 0, None
        self.wire.begin()

    def new_id(self, kind: str) -> str:
        """An id that no other turn of the session has, also after a restart."""
        self._calls += 1
        return f"{kind}_{len(self.texts)}_{self._calls}"

    def pause(self, seconds: float) -> None:
        """Wait between the deltas of a text, or while a call runs, unless the pace is fast. Raises Interrupted or InputEnded."""
        if seconds and not self.fast:
            self.wire.pause(seconds)

    def stream(self, kind: str, text: str, chunk: int = DELTA, every: float = 0.0) -> None:
        """A text in deltas."""
        for start in range(0, len(text), chunk):
            if start:
                self.pause(every)
            self.wire.emit(kind, text=text[start : start + chunk])

    def keep_result(self, key: str, output: Any) -> None:
        """What a call gave, for the texts that follow."""
        self.last_result = self.results[key] = text_of(output)

    def fill(self, text: str) -> str:
        """The text with its placeholders filled in."""
        return PLACEHOLDER.sub(self._value, text) if "{" in text else text

    def fill_all(self, value: Any) -> Any:
        """Any JSON with its texts filled in."""
        if isinstance(value, str):
            return self.fill(value)
        if isinstance(value, list):
            return [self.fill_all(item) for item in value]
        if isinstance(value, dict):
            return {key: self.fill_all(item) for key, item in value.items()}
        return value

    def _value(self, found: re.Match[str]) -> str:
        escaped, brace, name = found.groups()
        if escaped is not None or brace is not None:
            return f"{{{escaped}}}" if escaped is not None else "{"
        group, _, key = name.partition(".")
        if group == "results":
            return self.results.get(key, "")
        if group == "choices":
            return self.choices.get(key, "")
        if group == "options":
            return self.options.get(key, "")
        return {
            "prompt": self.texts[-1] if self.texts else "",
            "turn": str(len(self.texts)),
            "steered": " ".join(text_of(content) for content in self.wire.steered),
            "images": str(self.images),
            "system": self.system,
            "model": self.model,
            "last_result": self.last_result,
            "additional_directories": "\n".join(self.directories),
        }.get(name, found.group())


def _calls_of_last_turn(history: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The calls since the last user message, each with its result."""
    calls: list[str] = []
    results: dict[str, str] = {}
    for message in history:
        if message["role"] == "user":
            calls, results = [], {}
        elif message["role"] == "tool":
            results[message["toolCallId"]] = text_of(message["content"])
        elif isinstance(message["content"], list):
            calls += [block["toolCallId"] for block in message["content"] if block["type"] == "tool_use"]
    return [(call, results.get(call, "")) for call in calls]


def text_of(content: Any) -> str:
    """The text of a message's content, or of a tool's result; other JSON as it is written."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(block, dict) and "type" in block for block in content):
        return "".join(block.get("text", "") for block in content if block["type"] == "text")
    return json.dumps(content, ensure_ascii=False)
