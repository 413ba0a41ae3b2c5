"""The tool calls of one ACP run: `tool_call` and `tool_call_update` in, a call's start, result and end out; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from acp.schema import FileEditToolCallContent, TerminalToolCallContent, ToolCallUpdate
from acp.schema import ToolCall as NativeCall

from drivers.acp.content import ToolContent, diff, output_of
from drivers.contract.events import OutputEvent, Terminal, ToolCall, ToolResult


@dataclass
class Call:
    """What is known of a call so far. `kind` is the protocol's word for what it does; agents may leave it out."""

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
    over: bool = False
    granted: bool = False

    def take(self, update: NativeCall | ToolCallUpdate) -> None:
        """What an update tells; what it leaves out stays."""
        self.kind = update.kind or self.kind
        self.title = update.title or self.title
        self.status = update.status or self.status
        self.raw_input = self.raw_input if update.raw_input is None else update.raw_input
        self.raw_output = self.raw_output if update.raw_output is None else update.raw_output
        self.content = self.content if update.content is None else list(update.content)
        if update.locations is not None:
            self.paths = [location.path for location in update.locations]


def kind_name(call: Call) -> str:
    """The name of a call of an agent whose tools are not known: the kind of what it does."""
    return call.kind


def shown_input(call: Call) -> dict[str, Any]:
    """The call's raw input; without one, what the agent shows of it instead."""
    if call.raw_input not in (None, {}):
        return call.raw_input if isinstance(call.raw_input, dict) else {"input": call.raw_input}
    edits = [item for item in call.content if isinstance(item, FileEditToolCallContent)]
    shown = output_of([item for item in call.content if item not in edits], {})
    changes = [_change(item) for item in edits]
    return {
        "title": call.title,
        **({"content": shown} if shown else {}),
        **({"paths": call.paths} if call.paths else {}),
        **({"changes": changes} if changes else {}),
    }


def _change(edit: FileEditToolCallContent) -> dict[str, str]:
    patch = diff(edit.path, edit.old_text or "", edit.new_text)
    return {"path": edit.path, "kind": "add" if edit.old_text is None else "update", "diff": patch}


class Calls:
    """The calls of the run under way. `name` and `given` say how a call and its input are shown."""

    def __init__(self, name: Callable[[Call], str] = kind_name, given: Callable[[Call], dict[str, Any]] = shown_input) -> None:
        self.name, self._given = name, given
        self.terminals: dict[str, str] = {}
        self._calls: dict[str, Call] = {}

    def progress(self, call: Call) -> list[OutputEvent]:
        """The events of an update. A call that is only pending starts when its input is known, or it is seen at work."""
        if call.over:
            return []
        shown = self._terminals_of(call)
        if call.status in ("completed", "failed"):
            return [*self.start(call), *shown, *self.finish(call, self._output(call), failed=call.status == "failed")]
        if call.status == "in_progress" or call.raw_input not in (None, {}) or shown:
            return [*self.start(call), *shown]
        return []

    def _terminals_of(self, call: Call) -> list[OutputEvent]:
        """The terminals that the call is seen to run in now."""
        ids = [item.terminal_id for item in call.content if isinstance(item, TerminalToolCallContent)]
        new = [terminal_id for terminal_id in ids if terminal_id not in call.terminals]
        call.terminals += new
        return [Terminal(tool_call_id=call.id, terminal_id=terminal_id) for terminal_id in new]

    def known(self, update: NativeCall | ToolCallUpdate) -> Call:
        """The call that an update is about, with what it tells."""
        call = self._calls.setdefault(update.tool_call_id, Call(update.tool_call_id))
        if not call.over:
            call.take(update)
        return call

    def start(self, call: Call) -> list[OutputEvent]:
        """The call's start, unless it was told before."""
        if call.started:
            return []
        call.started = True
        detail = call.title or None
        return [ToolCall(id=call.id, name=self.name(call), status="started", input=self._given(call), detail=detail)]

    def finish(self, call: Call, output: Any, *, failed: bool) -> list[OutputEvent]:
        """The call's result and its end."""
        call.over = True
        return [
            ToolResult(tool_call_id=call.id, output=output, is_error=failed),
            ToolCall(id=call.id, name=self.name(call), status="failed" if failed else "completed"),
        ]

    def own(self, call_id: str, kind: str, given: dict[str, Any]) -> Call:
        """A call for something that the agent asks of its client outside of any call of its own."""
        call = self._calls[call_id] = Call(call_id, kind, str(given.get("command") or given.get("path") or ""), raw_input=given)
        return call

    def granted(self, kinds: frozenset[str]) -> bool:
        """Whether a call of one of these kinds is at work with the client's leave."""
        return any(call.granted and not call.over and call.kind in kinds for call in self._calls.values())

    def begun(self) -> list[OutputEvent]:
        """The starts of the calls that are still pending; before anything else is told."""
        return [event for call in self._calls.values() if not call.started for event in self.start(call)]

    def _output(self, call: Call) -> Any:
        if call.content:
            return output_of(call.content, self.terminals)
        return "" if call.raw_output is None else call.raw_output
