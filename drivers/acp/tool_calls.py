"""The tool calls of one ACP run: translates `tool_call` and `tool_call_update` into a call's start, result and end. No I/O.

An agent may change a call that the client was sent already. What the client sees of a call stays as it was: the changed call
continues as another call, with an id of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from acp.schema import FileEditToolCallContent, TerminalToolCallContent, ToolCallUpdate
from acp.schema import ToolCall as NativeCall

from drivers.acp.call_scope import CallScope, path_of, scope_of, terminal_line, terminal_scope, with_arguments
from drivers.acp.content import ToolContent, tool_output, unified_diff
from drivers.contract.client_services import CREATE, ClientRequest
from drivers.contract.events import DeniedResult, OutputEvent, Terminal, ToolCall, ToolResult

CHANGED = "The agent has changed this call. It continues as another call."
"""The result of a call as the client was sent it."""


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call as the client was sent it."""

    kind: str
    name: str
    input: dict[str, Any]
    title: str
    scope: CallScope


@dataclass
class ToolCallState:
    """One call, as of its latest update. `kind` is the protocol's ToolKind; agents may omit it.

    id: the id of the call's events; the agent's own is `native_id`, which several calls have after a change.
    sent: what the client was sent of it; None before its start.
    tool: the name of its tool, where the agent's program reports it.
    method_input: its whole input, of a call that the gateway has created for a client method.
    ran: its command line was run by a `terminal/create`.
    """

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
    native_id: str = ""
    sent: SentCall | None = None
    method_input: dict[str, Any] | None = None
    ran: bool = False
    tool: str = ""

    def merge(self, update: NativeCall | ToolCallUpdate) -> None:
        """Apply an update; fields that it omits keep their values, and so does the input if it is empty."""
        self.kind = update.kind or self.kind
        self.title = update.title or self.title
        self.status = update.status or self.status
        # opencode has an empty object in the permission request of a command.
        self.raw_input = update.raw_input if update.raw_input or self.raw_input is None else self.raw_input
        self.raw_output = self.raw_output if update.raw_output is None else update.raw_output
        self.content = self.content if update.content is None else list(update.content)
        if update.locations is not None:
            self.paths = [location.path for location in update.locations]


def default_name(call: ToolCallState) -> str:
    """The tool's name where the agent's tools are not known: the call's kind."""
    return call.kind


def default_input(call: ToolCallState) -> dict[str, Any]:
    """The call's raw input, with its whole command line; without one, its title, content, paths and file edits."""
    if call.raw_input not in (None, {}):
        return with_arguments(call.raw_input) if isinstance(call.raw_input, dict) else {"input": call.raw_input}
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
    """The calls of the current run. `name`, `input_of` and `inputs_vary` are those of the AgentProfile, `cwd` is the session's
    folder."""

    def __init__(
        self,
        name: Callable[[ToolCallState], str] = default_name,
        input_of: Callable[[ToolCallState], dict[str, Any]] = default_input,
        cwd: str = "/",
        inputs_vary: bool = False,
    ) -> None:
        self.name, self._tool_input, self._cwd, self._inputs_vary = name, input_of, cwd, inputs_vary
        self.terminals: dict[str, str] = {}
        self._calls: dict[str, ToolCallState] = {}
        self._of_methods: list[ToolCallState] = []
        self._ids: set[str] = set()

    def update(self, update: NativeCall | ToolCallUpdate) -> ToolCallState:
        """The call that an update belongs to, with the update applied. A finished call has no more events."""
        native_id = update.tool_call_id
        call = self._calls.get(native_id)
        if call is None:
            call = self._calls[native_id] = ToolCallState(self._unused(native_id), native_id=native_id)
        before = call.raw_input
        call.merge(update)
        if self._inputs_vary and isinstance(before, dict) and isinstance(call.raw_input, dict):
            call.raw_input = {**before, **call.raw_input}
        return call

    def has_started(self, native_id: str | None) -> bool:
        """Whether the client was sent the call with this id of the agent."""
        call = self._calls.get(native_id) if native_id is not None else None
        return call is not None and call.started

    def asked(self, update: NativeCall | ToolCallUpdate) -> tuple[ToolCallState, list[OutputEvent]]:
        """The call of a permission request, which is applied to it already. A changed call, or one that has ended, becomes
        another call; the events end the one that the client was sent."""
        call = self._calls[update.tool_call_id]
        if call.finished:
            call = self.successor(call)
            call.status = update.status or "pending"
            return call, []
        # The title too is what a person has read, but not beside the whole diff: codex-acp (2.6.0) words it anew when it asks.
        retitled = call.sent is not None and call.sent.title != call.title and not self._inputs_vary
        if (retitled and not self._same_edits(call)) or self.is_changed(call):
            return self.supersede(call)
        return call, []

    def is_changed(self, call: ToolCallState) -> bool:
        """Whether the call's tool or input is not what the client was sent."""
        if call.sent is None or (call.sent.name, call.sent.input) == (self.name(call), self._input_of(call)):
            return False
        if self._same_edits(call):
            return False
        same_scope = bool(call.sent.scope) and call.sent.scope == self._scope(call, self._input_of(call))
        return not (self._inputs_vary and same_scope and call.sent.name == self.name(call))

    def _same_edits(self, call: ToolCallState) -> bool:
        """Whether the call is described by its edits, and these are what the client was sent: the same files and texts."""
        if call.sent is None or call.raw_input not in (None, {}) or call.sent.name != self.name(call):
            return False
        now = self._input_of(call)
        changes = now.get("changes")
        if not changes or call.sent.input.get("changes") != changes or call.sent.input.get("content") != now.get("content"):
            return False
        return set(now.get("paths", ())) <= {change["path"] for change in changes}

    def runs_something_else(self, call: ToolCallState) -> bool:
        """Whether the call's command line or files are not those that the client was sent."""
        now = self._scope(call, self._input_of(call))
        return call.sent is not None and bool(call.sent.scope) and bool(now) and call.sent.scope != now

    def supersede(self, call: ToolCallState) -> tuple[ToolCallState, list[OutputEvent]]:
        """The call as another call, and the events that end the one that the client was sent."""
        return self.successor(call), self.finish(call, CHANGED, failed=True)

    def successor(self, call: ToolCallState) -> ToolCallState:
        """The call as another call, which has not started. Updates of the agent belong to it from now on."""
        found = replace(
            call,
            id=self._unused(call.native_id),
            terminals=[],
            started=False,
            finished=False,
            granted=False,
            sent=None,
            ran=False,
        )
        self._calls[call.native_id] = found
        return found

    def add(self, call_id: str, kind: str, request: ClientRequest) -> ToolCallState:
        """Add a call for a client method that belongs to no call of the agent's. Raises ValueError for invalid parameters."""
        given = {name: value for name, value in request.params.items() if name != "sessionId"}
        if request.method == CREATE:
            given["command"] = terminal_line(request.params, self._cwd)
        title = str(given.get("command") or given.get("path") or "")
        call = ToolCallState(self._unused(call_id), kind, title, method_input=given)
        self._of_methods.append(call)
        return call

    def covering(
        self, request: ClientRequest, kinds: frozenset[str], permitted: Callable[[ToolCallState], bool]
    ) -> ToolCallState | None:
        """The unfinished, permitted call of one of these kinds that a client method belongs to: the client was sent its command
        line, which runs once, or its file. Raises ValueError for invalid parameters."""
        calls = [call for call in self._calls.values() if not call.finished and call.sent is not None and call.sent.kind in kinds]
        if request.method == CREATE:
            line = terminal_scope(request.params, self._cwd).line
            found = (call for call in calls if not call.ran and call.sent is not None and call.sent.scope.line == line)
        else:
            path = path_of(str(request.params.get("path")), self._cwd)
            found = (call for call in calls if call.sent is not None and path in call.sent.scope.paths)
        covering = next((call for call in found if permitted(call)), None)
        if covering is not None and request.method == CREATE:
            covering.ran = True
        return covering

    def progress(self, call: ToolCallState) -> list[OutputEvent]:
        """The events of an update. A pending call starts when its input is known, or when it shows a terminal."""
        if call.finished:
            return []
        if call.status in ("completed", "failed"):
            events: list[OutputEvent] = []
            if isinstance(call.raw_input, dict) and self.runs_something_else(call):
                call, events = self.supersede(call)
            terminals = self._new_terminals(call)
            end = self.finish(call, self._output(call), failed=call.status == "failed")
            return [*events, *self.start(call), *terminals, *end]
        terminals = self._new_terminals(call)
        if call.status == "in_progress" or call.raw_input not in (None, {}) or terminals:
            return [*self.start(call), *terminals]
        return []

    def start(self, call: ToolCallState) -> list[OutputEvent]:
        """The call's start event, unless it was sent before."""
        if call.started:
            return []
        call.started = True
        name, given = self.name(call), self._input_of(call)
        call.sent = SentCall(call.kind, name, given, call.title, self._scope(call, given))
        return [ToolCall(id=call.id, name=name, status="started", input=given, detail=call.title or None)]

    def finish(self, call: ToolCallState, output: Any, *, failed: bool, denied: bool = False) -> list[OutputEvent]:
        """The call's result and end events. `denied`: the session does not permit it, and the client was not asked."""
        call.finished = True
        name = call.sent.name if call.sent is not None else self.name(call)
        result = DeniedResult if denied else ToolResult
        return [
            result(tool_call_id=call.id, output=output, is_error=failed),
            ToolCall(id=call.id, name=name, status="failed" if failed else "completed"),
        ]

    def start_pending(self) -> list[OutputEvent]:
        """The start events of the calls that have not started yet."""
        return [event for call in (*self._calls.values(), *self._of_methods) for event in self.start(call)]

    def _input_of(self, call: ToolCallState) -> dict[str, Any]:
        return self._tool_input(call) if call.method_input is None else call.method_input

    def _scope(self, call: ToolCallState, given: Mapping[str, Any]) -> CallScope:
        if isinstance(call.raw_input, dict) and call.raw_input:
            return scope_of(call.raw_input, self._cwd)
        return scope_of(given, self._cwd)

    def _unused(self, call_id: str) -> str:
        """This id, with a number if a call of this run has it already."""
        found, n = call_id, 1
        while found in self._ids:
            n += 1
            found = f"{call_id}_{n}"
        self._ids.add(found)
        return found

    def _new_terminals(self, call: ToolCallState) -> list[OutputEvent]:
        ids = [item.terminal_id for item in call.content if isinstance(item, TerminalToolCallContent)]
        new = [terminal_id for terminal_id in ids if terminal_id not in call.terminals]
        call.terminals += new
        return [Terminal(tool_call_id=call.id, terminal_id=terminal_id) for terminal_id in new]

    def _output(self, call: ToolCallState) -> Any:
        if call.content:
            return tool_output(call.content, self.terminals)
        return "" if call.raw_output is None else call.raw_output
