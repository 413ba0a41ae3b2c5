"""Converts events and stored messages to the updates of `session/update`. Does no I/O.

Protocol page: https://agentclientprotocol.com/protocol/prompt-turn
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    BaseModel,
    ContentToolCallContent,
    TerminalToolCallContent,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
    Usage,
    UsageUpdate,
    UserMessageChunk,
)
from acp.schema import PlanEntry as AcpPlanEntry

from drivers.contract.driver_info import DriverInfo
from drivers.contract.events import (
    AgentToken,
    ContextUse,
    MessageEnd,
    OutputEvent,
    PlanEntry,
    Terminal,
    Thinking,
    ToolCall,
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
from gateway.protocols.acp.tool_calls import Plan, diffs_of, locations_of, title_of
from gateway.runs.pending_calls import INTERRUPTED

Update = BaseModel


class Updates:
    """The updates of one session for one client.

    `name` is the prefix of the message ids, which must differ between two views of a session. `cwd` is the folder of relative
    paths, `info` what the agent's driver states about its tools. `asks` returns whether a call of a tool, given by its name,
    needs permission. `has_terminal` returns whether the client has created a terminal, given by its id.
    """

    def __init__(
        self,
        name: str,
        cwd: str,
        info: DriverInfo,
        asks: Callable[[str], bool],
        has_terminal: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.calls: dict[str, ToolCall] = {}
        self.usage: Usage | None = None
        self._name, self._cwd, self._asks, self._has_terminal = name, cwd, asks, has_terminal
        self._terminals: dict[str, list[str]] = {}
        self._info = info
        self._plan = Plan(info.plan_tools)
        self._messages = 0
        self._message_kind: str | None = None

    def start_run(self) -> None:
        """Reset the usage and the calls, which belong to one run."""
        self.usage = None
        self.calls.clear()
        self._terminals.clear()
        self._message_kind = None

    def of_event(self, event: OutputEvent) -> list[Update]:
        """Return the updates for one event."""
        match event:
            case AgentToken():
                return [AgentMessageChunk(
                    session_update="agent_message_chunk", content=text(event.text), message_id=self._message("assistant")
                )]  # fmt: skip
            case Thinking():
                return [AgentThoughtChunk(
                    session_update="agent_thought_chunk", content=text(event.text), message_id=self._message("thought")
                )]  # fmt: skip
            case ToolCall():
                return self._started(event) if event.status == "started" else self._ended(event.id, event.status)
            case ToolResult():
                return self._result(event.tool_call_id, event.output, failed=event.is_error)
            case MessageEnd():
                self._message_kind = None
            case UsageEvent():
                self._count(event)
            case ContextUse():
                return [UsageUpdate(session_update="usage_update", used=event.used, size=event.size)]
            case Terminal():
                return self._terminal(event)
            case PlanEvent():
                return [AgentPlanUpdate(session_update="plan", entries=[_step(entry) for entry in event.entries])]
        return []

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
            failed = text_of(message.content).startswith((CANCELLED, DENIED, INTERRUPTED))
            return self._result(message.tool_call_id, message.content, failed=failed)
        return []

    def add_calls(self, calls: Iterable[ToolUseBlock]) -> None:
        """Add calls that started before the client opened the session."""
        for call in calls:
            self.calls[call.tool_call_id] = ToolCall(id=call.tool_call_id, name=call.name, status="started", input=call.input)

    def permission_details(self, call_id: str) -> ToolCallUpdate:
        """Return the details of a call for a permission request."""
        call = self.calls.get(call_id) or ToolCall(id=call_id, name="tool", status="started")
        return ToolCallUpdate(tool_call_id=call.id, status="pending", **self._details(call))

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

    def _started(self, call: ToolCall) -> list[Update]:
        self._message_kind = None
        self.calls[call.id] = call
        status = "pending" if self._asks(call.name) else "in_progress"
        meta = {"parentToolCallId": call.parent_id} if call.parent_id else None
        start = ToolCallStart(
            session_update="tool_call", tool_call_id=call.id, status=status, field_meta=meta, **self._details(call)
        )  # fmt: skip
        plan = self._plan.called(call.name, call.input)
        return [start, *([AgentPlanUpdate(session_update="plan", entries=plan)] if plan is not None else [])]

    def _details(self, call: ToolCall) -> dict[str, Any]:
        return {
            "title": title_of(self._info, call.name, call.input, call.detail),
            "kind": self._info.tool_kind(call.name),
            "locations": locations_of(self._info, call.input, self._cwd) or None,
            "content": diffs_of(self._info, call.input, self._cwd) or None,
            "raw_input": call.input,
        }

    def _result(self, call_id: str, output: Any, *, failed: bool) -> list[Update]:
        call = self.calls.pop(call_id, None)
        has_diff = call is not None and not failed and bool(diffs_of(self._info, call.input, self._cwd))
        has_terminal = bool(self._terminals.pop(call_id, None))
        # An update replaces the content of a call. The diff of an edit, or the client's terminal, shows more than the output.
        keep_content = has_diff or has_terminal
        result = content_of(output)
        content = (
            None if keep_content else [ContentToolCallContent(type="content", content=block) for block in content_blocks(result)]
        )
        # `rawOutput` does not repeat the content. It is an object: the TypeScript package up to 0.5 drops other values' updates.
        repeated = content is not None and (isinstance(output, str) or not isinstance(result, str))
        raw = None if repeated else output if isinstance(output, dict) else {"output": output}
        return [
            ToolCallProgress(
                session_update="tool_call_update",
                tool_call_id=call_id,
                status="failed" if failed else "completed",
                content=content,
                raw_output=raw,
            )
        ]

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
        if self.calls.pop(call_id, None) is None:
            return []
        return [ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, status=status)]

    def _count(self, event: UsageEvent) -> None:
        before = self.usage or Usage(total_tokens=0, input_tokens=0, output_tokens=0, cached_read_tokens=0, cached_write_tokens=0)
        read, write = (before.cached_read_tokens or 0) + event.cache_read, (before.cached_write_tokens or 0) + event.cache_write
        sent, generated = before.input_tokens + event.input_tokens, before.output_tokens + event.output_tokens
        self.usage = Usage(
            total_tokens=sent + generated + read + write,
            input_tokens=sent,
            output_tokens=generated,
            cached_read_tokens=read,
            cached_write_tokens=write,
        )


def _step(entry: PlanEntry) -> AcpPlanEntry:
    return AcpPlanEntry(content=entry.content, priority=entry.priority, status=entry.status)
