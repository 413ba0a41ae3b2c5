"""Converts events and stored messages to the updates of `session/update`. Does no I/O.

Protocol page: https://agentclientprotocol.com/protocol/prompt-turn
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    BaseModel,
    ContentToolCallContent,
    Cost,
    SessionInfoUpdate,
    TerminalToolCallContent,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
    Usage,
    UsageUpdate,
    UserMessageChunk,
)
from acp.schema import PlanEntry as AcpPlanEntry

from drivers.contract.driver_info import TOOL_KINDS, DriverInfo
from drivers.contract.events import (
    AgentToken,
    ContextUse,
    Event,
    FileChange,
    MessageEnd,
    PlanEntry,
    RateLimit,
    SessionEnd,
    Terminal,
    Thinking,
    ToolCall,
    ToolInput,
    ToolOutput,
    ToolResult,
)
from drivers.contract.events import Plan as PlanEvent
from drivers.contract.events import Usage as UsageEvent
from drivers.contract.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
    text_of,
)
from gateway.events.messages import CANCELLED, content_of
from gateway.policy.decision_record import DENIED
from gateway.protocols.acp.content import content_blocks, text
from gateway.protocols.acp.tool_calls import (
    Plan,
    comments_of,
    diff_content,
    diffs_of,
    input_text_of,
    locations_of,
    plan_text_of,
    title_of,
)
from gateway.runs.pending_calls import INTERRUPTED

Update = BaseModel
RATE_LIMIT = "portico/rateLimit"
"""The key in `_meta` for the state of a usage limit."""
_EXIT_CODE = "[exit code "
"""How the last line of a failed command's output begins in codex's results. The number and a bracket follow."""
NOT_COMPLETED = "The model has not completed this call."
"""The content of a call that the model has begun to write, and that never starts."""


class Updates:
    """The updates of one session for one client.

    `name` is the prefix of the message ids, which must differ between two views of a session. `cwd` is the folder of relative
    paths, `info` what the agent's driver states about its tools. `asks` returns whether a call of a tool, given by its name,
    needs permission. `has_terminal` returns whether the client has created a terminal, given by its id. `output_member` is the
    member of `_meta` in which the client gets the output of commands as that of a terminal; None if it does not support that.
    """

    def __init__(
        self,
        name: str,
        cwd: str,
        info: DriverInfo,
        asks: Callable[[str], bool],
        has_terminal: Callable[[str], bool] = lambda _: False,
        output_member: str | None = None,
    ) -> None:
        self.calls: dict[str, ToolCall] = {}
        self._usage: UsageEvent | None = None
        self._used: ContextUse | None = None
        self._name, self._cwd, self._asks, self._has_terminal = name, cwd, asks, has_terminal
        self._terminals: dict[str, list[str]] = {}
        self._output_member = output_member
        self._streamed: dict[str, list[str]] = {}
        self._unstarted: dict[str, None] = {}
        self._info = info
        self._plan = Plan(info.display.plan_tools)
        self._messages = 0
        self._message_kind: str | None = None

    def start_run(self) -> None:
        """Reset the usage and the calls, which belong to one run."""
        self._usage = None
        self.calls.clear()
        self._terminals.clear()
        self._streamed.clear()
        self._unstarted.clear()
        self._message_kind = None

    def of_event(self, event: Event) -> list[Update]:
        """Return the updates for one event."""
        handle = _HANDLERS.get(type(event))
        return [] if handle is None else handle(self, event)

    def of_cost(self, amount: float) -> list[Update]:
        """Return the update for what the session has cost so far, in US dollars, once the state of the context is known."""
        if self._used is None:
            return []
        cost = Cost(amount=amount, currency="USD")
        return [UsageUpdate(session_update="usage_update", used=self._used.used, size=self._used.size, cost=cost)]

    def of_deltas(self, events: Sequence[AgentToken | Thinking]) -> list[dict[str, Any]]:
        """Return the updates for events of one kind, one each, as JSON: without a model for each of thousands."""
        name, kind = _CHUNKS[type(events[0])]
        message_id = self._message(kind)
        return [
            {"content": {"text": event.text, "type": "text"}, "messageId": message_id, "sessionUpdate": name} for event in events
        ]

    def of_message(self, message: Message) -> list[Update]:
        """Return the updates for a message of the history."""
        self._message_kind = None
        if isinstance(message, UserMessage):
            return [
                UserMessageChunk(session_update="user_message_chunk", content=block, message_id=self._message("user"))
                for block in content_blocks(message.content)
            ]
        if isinstance(message, AssistantMessage):
            return [update for block in blocks(message.content) for update in self._block(block)]
        if isinstance(message, ToolMessage):
            failed = text_of(message.content).startswith((CANCELLED, DENIED, INTERRUPTED, *self._info.display.error_prefixes))
            return self._result(ToolResult(tool_call_id=message.tool_call_id, output=message.content, is_error=failed))
        return []

    def add_calls(self, calls: Iterable[ToolUseBlock]) -> None:
        """Add calls that started before the client opened the session."""
        for call in calls:
            self.calls[call.tool_call_id] = ToolCall(id=call.tool_call_id, name=call.name, status="started", input=call.input)

    def permission_details(self, call_id: str) -> ToolCallUpdate:
        """Return the details of a call for a permission request."""
        call = self.calls.get(call_id) or ToolCall(id=call_id, name="tool", status="started")
        details = self._details(call)
        if details["content"] is None and (shown := input_text_of(self._info, call.name, call.input)) is not None:
            details["content"] = [_text_content(shown)]
        return ToolCallUpdate(tool_call_id=call.id, status="pending", **details)

    def _token(self, event: AgentToken) -> list[Update]:
        return [AgentMessageChunk(
            session_update="agent_message_chunk", content=text(event.text), message_id=self._message("assistant")
        )]  # fmt: skip

    def _thinking(self, event: Thinking) -> list[Update]:
        return [AgentThoughtChunk(
            session_update="agent_thought_chunk", content=text(event.text), message_id=self._message("thought")
        )]  # fmt: skip

    def _message_over(self, event: MessageEnd | SessionEnd) -> list[Update]:
        self._message_kind = None
        unstarted, self._unstarted = self._unstarted, {}
        not_completed = [_text_content(NOT_COMPLETED)]
        return [self._ended_update(call_id, status="failed", content=not_completed) for call_id in unstarted]

    def _rate_limit(self, event: RateLimit) -> list[Update]:
        # The protocol has no update for it, and that of the usage needs the state of the context.
        return [SessionInfoUpdate(session_update="session_info_update", field_meta={RATE_LIMIT: rate_limit_meta(event)})]

    def _context(self, event: ContextUse) -> list[Update]:
        self._used = event
        return [UsageUpdate(session_update="usage_update", used=event.used, size=event.size)]

    def _reported_plan(self, event: PlanEvent) -> list[Update]:
        return [AgentPlanUpdate(session_update="plan", entries=[_step(entry) for entry in event.entries])]

    def _call(self, event: ToolCall) -> list[Update]:
        return self._started(event) if event.status == "started" else self._ended(event.id, event.status)

    def _block(self, block: Any) -> list[Update]:
        match block:
            case ThinkingBlock():
                return self.of_event(Thinking(text=block.thinking))
            case TextBlock():
                return self.of_event(AgentToken(text=block.text))
            case ImageBlock():
                chunk = AgentMessageChunk(
                    session_update="agent_message_chunk",
                    content=content_blocks((block,))[0],
                    message_id=self._message("assistant"),
                )
                return [chunk]
            case ToolUseBlock():
                return self._started(ToolCall(id=block.tool_call_id, name=block.name, status="started", input=block.input))
        return []

    def _message(self, kind: str) -> str:
        """Return the id of the current message. A chunk of another kind starts a new message."""
        if kind != self._message_kind:
            self._message_kind = kind
            self._messages += 1
        return f"{self._name}-{self._messages}"

    def _written(self, event: ToolInput) -> list[Update]:
        """Announce a call that the model is writing, or what is known of it by now."""
        call = ToolCall(id=event.id, name=event.name, status="started", input=event.input)
        details = self._display(call) if event.input else {"title": f"Preparing {event.name} …"}
        if event.id in self._unstarted:
            return [
                ToolCallProgress(
                    session_update="tool_call_update", tool_call_id=event.id, status="pending", raw_input=event.input, **details
                )
            ]
        self._message_kind = None
        self._unstarted[event.id] = None
        details.setdefault("kind", self._info.tool_kind(event.name))
        return [self._announced(call, "pending", raw_input=event.input, **details)]

    def _started(self, call: ToolCall) -> list[Update]:
        self._message_kind = None
        self.calls[call.id] = call
        status: Any = "pending" if self._asks(call.name) else "in_progress"
        if call.id not in self._unstarted:
            return [self._announced(call, status, **self._details(call))]
        del self._unstarted[call.id]
        # The whole content: an update replaces it.
        return [ToolCallProgress(session_update="tool_call_update", tool_call_id=call.id, status=status, **self._details(call))]

    def _announced(self, call: ToolCall, status: Any, **details: Any) -> Update:
        """Return the first update about a call. Only there, clients look for a terminal of the output."""
        meta: dict[str, Any] = {"parentToolCallId": call.parent_id} if call.parent_id else {}
        if self._output_member and call.name not in TOOL_KINDS and self._info.tool_kind(call.name) == "execute":
            self._streamed[call.id] = []
            cwd = call.input.get("cwd") if isinstance(call.input, dict) else None
            meta["terminal_info"] = {"terminal_id": call.id, "cwd": cwd if isinstance(cwd, str) else self._cwd}
            details["content"] = self._with_terminal(call.id, details.get("content"))
        return ToolCallStart(
            session_update="tool_call", tool_call_id=call.id, status=status, field_meta=meta or None, **details
        )  # fmt: skip

    def _with_terminal(self, call_id: str, content: list[Any] | None) -> list[Any]:
        terminal = TerminalToolCallContent(type="terminal", terminal_id=call_id)
        return content if content and terminal in content else [*(content or ()), terminal]

    def _details(self, call: ToolCall) -> dict[str, Any]:
        details = self._display(call)
        comments = [_text_content(comment) for comment in comments_of(self._info, call.name, call.input)]
        if (plan := plan_text_of(self._info, call.name, call.input)) is not None:
            comments = [_text_content(plan)]
        content: list[Any] | None = [*comments, *diffs_of(self._info, call.input, self._cwd)] or None
        if call.id in self._streamed:
            content = self._with_terminal(call.id, content)
        return {**details, "content": content, "raw_input": call.input}

    def _display(self, call: ToolCall) -> dict[str, Any]:
        """The title, the kind and the files of a call, whose input may not be complete."""
        kind = self._info.tool_kind(call.name)
        return {
            "title": title_of(self._info, call.name, call.input, call.detail, self._cwd),
            "kind": kind,
            "locations": locations_of(self._info, call.input, self._cwd, kind) or None,
        }

    def _part(self, event: ToolOutput) -> list[Update]:
        return self._output(event.tool_call_id, event.text) if event.tool_call_id in self._streamed else []

    def _output(self, call_id: str, text: str) -> list[Update]:
        """Append output to the terminal of a call."""
        self._streamed[call_id].append(text)
        meta = {str(self._output_member): {"terminal_id": call_id, "data": text}}
        return [ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, status="in_progress", field_meta=meta)]

    def _ended_update(self, call_id: str, exit_code: int | None = None, **fields: Any) -> Update:
        """Return the last update about a call, which ends its terminal."""
        meta = None
        if self._streamed.pop(call_id, None) is not None:
            meta = {"terminal_exit": {"terminal_id": call_id, "exit_code": exit_code, "signal": None}}
        return ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, field_meta=meta, **fields)

    def _unsent(self, event: ToolResult) -> str | None:
        """The output of a command that its terminal does not have yet; None if the terminal cannot have the whole result."""
        parts, output = self._streamed.get(event.tool_call_id), event.output
        if parts is None or not isinstance(output, str):
            return None
        if not parts:
            # The reason for which a command did not run is no output of it.
            return None if event.is_error and event.exit_code is None else output
        sent = "".join(parts)
        sent = sent if output.startswith(sent) else sent.rstrip()
        # codex 0.169 does not report what a command puts out in its first milliseconds, except in the result.
        return _without_exit_code(output[len(sent) :]) if output.startswith(sent) else None

    def _result(self, event: ToolResult) -> list[Update]:
        call = self.calls.pop(event.tool_call_id, None)
        failed, output = event.is_error, event.output
        status = "failed" if failed else "completed"
        plan = self._plan_update(call, output, failed=failed)
        if (rest := self._unsent(event)) is not None:
            update = self._output(event.tool_call_id, rest) if rest else []
            return [*update, self._ended_update(event.tool_call_id, event.exit_code, status=status), *plan]
        changes = [] if failed else [_located(change, self._cwd) for change in event.changes]
        has_diff = call is not None and not failed and bool(diffs_of(self._info, call.input, self._cwd))
        has_terminal = bool(self._terminals.pop(event.tool_call_id, None))
        # An update replaces the content of a call. The diff of an edit, or the client's terminal, shows more than the output.
        keep_content = has_diff or has_terminal or bool(changes)
        result = content_of(output)
        content: list[Any] | None = [diff_content(change) for change in changes] or None
        if not keep_content:
            content = [ContentToolCallContent(type="content", content=block) for block in content_blocks(result)]
        # `rawOutput` does not repeat the content. It is an object: the TypeScript package up to 0.5 drops other values' updates.
        repeated = not keep_content and (isinstance(output, str) or not isinstance(result, str))
        raw = None if repeated else output if isinstance(output, dict) else {"output": output}
        locations = [ToolCallLocation(path=change.path, line=change.line) for change in changes] or None
        end = self._ended_update(
            event.tool_call_id, event.exit_code, status=status, content=content, locations=locations, raw_output=raw
        )  # fmt: skip
        return [end, *plan]

    def _plan_update(self, call: ToolCall | None, output: Any = None, *, failed: bool) -> list[Update]:
        """Report the plan after the end of a call that has changed it. A sub-agent's own list of steps is not the plan."""
        if call is None or failed or (call.parent_id and self._info.display.plan_tools.get(call.name) == "replace"):
            return []
        plan = self._plan.called(call.name, call.input, output)
        return [] if plan is None else [AgentPlanUpdate(session_update="plan", entries=plan)]

    def _terminal(self, event: Terminal) -> list[Update]:
        """Make a terminal of the client the content of the call. The client displays it also after it is released."""
        if not self._has_terminal(event.terminal_id):
            return []
        terminals = self._terminals.setdefault(event.tool_call_id, [])
        terminals.append(event.terminal_id)
        content = [TerminalToolCallContent(type="terminal", terminal_id=terminal_id) for terminal_id in terminals]
        return [ToolCallProgress(session_update="tool_call_update", tool_call_id=event.tool_call_id, content=content)]

    def _ended(self, call_id: str, status: str) -> list[Update]:
        """Report the end of a call without a reported result, as of an application-side tool."""
        call = self.calls.pop(call_id, None)
        if call is None:
            return []
        return [self._ended_update(call_id, status=status), *self._plan_update(call, failed=status == "failed")]

    def _count(self, event: UsageEvent) -> list[Update]:
        self._usage = event if self._usage is None else self._usage.plus(event)
        return []

    @property
    def usage(self) -> Usage | None:
        """What the run has used; None if the agent has reported nothing."""
        used = self._usage
        if used is None:
            return None
        return Usage(
            total_tokens=used.input_tokens + used.output_tokens + used.cache_read + used.cache_write,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cached_read_tokens=used.cache_read,
            cached_write_tokens=used.cache_write,
            thought_tokens=used.reasoning_tokens or None,
        )

    @property
    def has_cost(self) -> bool:
        """Whether the agent has reported what the run costs."""
        return self._usage is not None and self._usage.cost_usd is not None


_HANDLERS: dict[type[Event], Callable[[Updates, Any], list[Update]]] = {
    AgentToken: Updates._token,
    Thinking: Updates._thinking,
    ToolInput: Updates._written,
    ToolCall: Updates._call,
    ToolOutput: Updates._part,
    ToolResult: Updates._result,
    MessageEnd: Updates._message_over,
    SessionEnd: Updates._message_over,
    UsageEvent: Updates._count,
    ContextUse: Updates._context,
    RateLimit: Updates._rate_limit,
    Terminal: Updates._terminal,
    PlanEvent: Updates._reported_plan,
}


def _located(change: FileChange, cwd: str) -> FileChange:
    return change.model_copy(update={"path": os.path.join(cwd, change.path)})


def rate_limit_meta(event: RateLimit) -> dict[str, Any]:
    """Return what a client gets about a usage limit. Times are in seconds since the epoch."""
    found = {
        "status": event.status,
        "limit": event.limit,
        "utilization": event.utilization,
        "resetsAt": event.resets_at,
        "waiting": event.waiting or None,
    }
    return {name: value for name, value in found.items() if value is not None}


_CHUNKS: dict[type[Event], tuple[str, str]] = {
    AgentToken: ("agent_message_chunk", "assistant"),
    Thinking: ("agent_thought_chunk", "thought"),
}
"""The update of a delta, and the kind of its message."""


def _text_content(value: str) -> ContentToolCallContent:
    return ContentToolCallContent(type="content", content=text(value))


def _step(entry: PlanEntry) -> AcpPlanEntry:
    return AcpPlanEntry(content=entry.content, priority=entry.priority, status=entry.status)


def _without_exit_code(output: str) -> str:
    """Return the output of a command without the exit code and the white space at its end."""
    text = output.rstrip()
    before, found, code = text.rpartition(_EXIT_CODE)
    has_code = found and code.endswith("]") and code[:-1].removeprefix("-").isdecimal()
    return before.rstrip() if has_code else text
