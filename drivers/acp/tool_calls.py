"""The tool calls of one ACP run: translates `tool_call` and `tool_call_update` into a call's start, result and end. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from acp.schema import FileEditToolCallContent, TerminalToolCallContent, ToolCallUpdate
from acp.schema import ToolCall as NativeCall

from drivers.acp.content import ToolContent, tool_output, unified_diff
from drivers.contract.events import OutputEvent, Terminal, ToolCall, ToolResult


@dataclass
class ToolCallState:
    """One call, as of its latest update. `kind` is the protocol's ToolKind; agents may omit it."""

    id: str
    kind: str = "other"
    title: str = ""
    status: str = "pending"
    raw_input: Any = None
    raw_output: Any = None
    content: list[ToolContent] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    terminals: list[str] = field(default_factory=list)
    started: bool = False
    finished: bool = False
    granted: bool = False

    def merge(self, update: NativeCall | ToolCallUpdate) -> None:
        """Apply an update; fields that it omits keep their values."""
        self.kind = update.kind or self.kind
        self.title = update.title or self.title
        self.status = update.status or self.status
        self.raw_input = self.raw_input if update.raw_input is None else update.raw_input
        self.raw_output = self.raw_output if update.raw_output is None else update.raw_output
        self.content = self.content if update.content is None else list(update.content)
        if update.locations is not None:
            self.paths = [location.path for location in update.locations]


def default_name(call: ToolCallState) -> str:
    """The tool's name where the agent's tools are not known: the call's kind."""
    return call.kind


def default_input(call: ToolCallState) -> dict[str, Any]:
    """The call's raw input; without one, its title, content, paths and file edits."""
    if call.raw_input not in (None, {}):
        return call.raw_input if isinstance(call.raw_input, dict) else {"input": call.raw_input}
    edits = [item for item in call.content if isinstance(item, FileEditToolCallContent)]
    content = tool_output([item for item in call.content if item not in edits], {})
    changes = [_change(item) for item in edits]
    return {
        "title": call.title,
        **({"content": content} if content else {}),
        **({"paths": call.paths} if call.paths else {}),
        **({"changes": changes} if changes else {}),
    }


def _change(edit: FileEditToolCallContent) -> dict[str, str]:
    diff = unified_diff(edit.path, edit.old_text or "", edit.new_text)
    return {"path": edit.path, "kind": "add" if edit.old_text is None else "update", "diff": diff}


class ToolCalls:
    """The calls of the current run. `name` and `input_of` are those of the AgentProfile."""

    def __init__(
        self,
        name: Callable[[ToolCallState], str] = default_name,
        input_of: Callable[[ToolCallState], dict[str, Any]] = default_input,
    ) -> None:
        self.name, self._input_of = name, input_of
        self.terminals: dict[str, str] = {}
        self._calls: dict[str, ToolCallState] = {}

    def update(self, update: NativeCall | ToolCallUpdate) -> ToolCallState:
        """The call that an update belongs to, with the update applied. A finished call does not change."""
        call = self._calls.setdefault(update.tool_call_id, ToolCallState(update.tool_call_id))
        if not call.finished:
            call.merge(update)
        return call

    def add(self, call_id: str, kind: str, given: dict[str, Any]) -> ToolCallState:
        """Add a call for a client method that the agent requests outside of its own calls."""
        title = str(given.get("command") or given.get("path") or "")
        call = self._calls[call_id] = ToolCallState(call_id, kind, title, raw_input=given)
        return call

    def progress(self, call: ToolCallState) -> list[OutputEvent]:
        """The events of an update. A pending call starts when its input is known, or when it shows a terminal."""
        if call.finished:
            return []
        terminals = self._new_terminals(call)
        if call.status in ("completed", "failed"):
            return [*self.start(call), *terminals, *self.finish(call, self._output(call), failed=call.status == "failed")]
        if call.status == "in_progress" or call.raw_input not in (None, {}) or terminals:
            return [*self.start(call), *terminals]
        return []

    def start(self, call: ToolCallState) -> list[OutputEvent]:
        """The call's start event, unless it was sent before."""
        if call.started:
            return []
        call.started = True
        detail = call.title or None
        return [ToolCall(id=call.id, name=self.name(call), status="started", input=self._input_of(call), detail=detail)]

    def finish(self, call: ToolCallState, output: Any, *, failed: bool) -> list[OutputEvent]:
        """The call's result and end events."""
        call.finished = True
        return [
            ToolResult(tool_call_id=call.id, output=output, is_error=failed),
            ToolCall(id=call.id, name=self.name(call), status="failed" if failed else "completed"),
        ]

    def start_pending(self) -> list[OutputEvent]:
        """The start events of the calls that have not started yet."""
        return [event for call in self._calls.values() if not call.started for event in self.start(call)]

    def any_granted(self, kinds: frozenset[str]) -> bool:
        """Whether a call of one of these kinds is unfinished and was granted by the client."""
        return any(call.granted and not call.finished and call.kind in kinds for call in self._calls.values())

    def _new_terminals(self, call: ToolCallState) -> list[OutputEvent]:
        ids = [item.terminal_id for item in call.content if isinstance(item, TerminalToolCallContent)]
        new = [terminal_id for terminal_id in ids if terminal_id not in call.terminals]
        call.terminals += new
        return [Terminal(tool_call_id=call.id, terminal_id=terminal_id) for terminal_id in new]

    def _output(self, call: ToolCallState) -> Any:
        if call.content:
            return tool_output(call.content, self.terminals)
        return "" if call.raw_output is None else call.raw_output
