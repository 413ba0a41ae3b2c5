"""What an agent does, as `session/update`s; pure. The stored history gives the same kinds when a session is loaded."""

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
from drivers.contract.info import DriverInfo
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
from gateway.policy.decisions import DENIED
from gateway.protocols.acp.content import shown, text
from gateway.protocols.acp.tool_calls import Plan, diffs_of, locations_of, title_of
from gateway.runs.pending_calls import INTERRUPTED

Update = BaseModel


class Updates:
    """The updates of one session, for one client. `name` makes its messages' ids differ from those of another view.

    `info` is what the agent's driver states of its tools. `asks` says of a tool's name whether a call of it waits for permission,
    `shows_terminal` of a terminal's id whether the client has it.
    """

    def __init__(
        self,
        name: str,
        cwd: str,
        info: DriverInfo,
        asks: Callable[[str], bool],
        shows_terminal: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.calls: dict[str, ToolCall] = {}
        self.usage: Usage | None = None
        self._name, self._cwd, self._asks, self._shows_terminal = name, cwd, asks, shows_terminal
        self._terminals: dict[str, list[str]] = {}
        self._info = info
        self._plan = Plan(info.plan_tools)
        self._messages = 0
        self._speaking: str | None = None

    def run_begins(self) -> None:
        """What is counted by the run starts anew."""
        self.usage = None
        self.calls.clear()
        self._terminals.clear()
        self._speaking = None

    def of_event(self, event: OutputEvent) -> list[Update]:
        """The updates of one event."""
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
                self._speaking = None
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
        """The updates that tell of a message of the history."""
        self._speaking = None
        if isinstance(message, UserMessage):
            return [
                UserMessageChunk(session_update="user_message_chunk", content=block, message_id=self._message("user"))
                for block in shown(message.content)
            ]
        if isinstance(message, AssistantMessage):
            return [update for block in blocks(message.content) for update in self._block(block)]
        if isinstance(message, ToolMessage):
            failed = text_of(message.content).startswith((CANCELLED, DENIED, INTERRUPTED))
            return self._result(message.tool_call_id, message.content, failed=failed)
        return []

    def known(self, calls: Iterable[ToolUseBlock]) -> None:
        """Calls that started before anything was shown."""
        for call in calls:
            self.calls[call.tool_call_id] = ToolCall(id=call.tool_call_id, name=call.name, status="started", input=call.input)

    def asked(self, call_id: str) -> ToolCallUpdate:
        """A call with everything that a client needs in order to decide about it."""
        call = self.calls.get(call_id) or ToolCall(id=call_id, name="tool", status="started")
        return ToolCallUpdate(tool_call_id=call.id, status="pending", **self._look(call))

    def _block(self, block: Any) -> list[Update]:
        match block:
            case ThinkingBlock():
                return self.of_event(Thinking(text=block.thinking))
            case TextBlock():
                return self.of_event(AgentToken(text=block.text))
            case ImageBlock():
                chunk = AgentMessageChunk(
                    session_update="agent_message_chunk",
                    content=shown((block,))[0],
                    message_id=self._message("assistant"),
                )
                return [chunk]
            case ToolUseBlock():
                return self._started(ToolCall(id=block.tool_call_id, name=block.name, status="started", input=block.input))
        return []

    def _message(self, kind: str) -> str:
        """The id of the message under way; a new one where another kind of speaker begins."""
        if kind != self._speaking:
            self._speaking = kind
            self._messages += 1
        return f"{self._name}-{self._messages}"

    def _started(self, call: ToolCall) -> list[Update]:
        self._speaking = None
        self.calls[call.id] = call
        status = "pending" if self._asks(call.name) else "in_progress"
        meta = {"parentToolCallId": call.parent_id} if call.parent_id else None
        start = ToolCallStart(
            session_update="tool_call", tool_call_id=call.id, status=status, field_meta=meta, **self._look(call)
        )  # fmt: skip
        plan = self._plan.called(call.name, call.input)
        return [start, *([AgentPlanUpdate(session_update="plan", entries=plan)] if plan is not None else [])]

    def _look(self, call: ToolCall) -> dict[str, Any]:
        return {
            "title": title_of(self._info, call.name, call.input, call.detail),
            "kind": self._info.tool_kind(call.name),
            "locations": locations_of(self._info, call.input, self._cwd) or None,
            "content": diffs_of(self._info, call.input, self._cwd) or None,
            "raw_input": call.input,
        }

    def _result(self, call_id: str, output: Any, *, failed: bool) -> list[Update]:
        call = self.calls.pop(call_id, None)
        told = call is not None and not failed and bool(diffs_of(self._info, call.input, self._cwd))
        told = bool(self._terminals.pop(call_id, None)) or told
        # A call's content is replaced as a whole: the diff of an edit says more than that it went well, a terminal shows it all.
        said = content_of(output)
        content = None if told else [ContentToolCallContent(type="content", content=block) for block in shown(said)]
        # Not twice what the content says; and an object: the TypeScript package up to 0.5 drops an update with another value.
        repeated = content is not None and (isinstance(output, str) or not isinstance(said, str))
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
        """The client shows a terminal of its own as the call's content, also when that is released."""
        if not self._shows_terminal(event.terminal_id):
            return []
        shown = self._terminals.setdefault(event.tool_call_id, [])
        shown.append(event.terminal_id)
        content = [TerminalToolCallContent(type="terminal", terminal_id=terminal_id) for terminal_id in shown]
        return [ToolCallProgress(session_update="tool_call_update", tool_call_id=event.tool_call_id, content=content)]

    def _ended(self, call_id: str, status: str) -> list[Update]:
        """The end of a call whose result was not told, as of a tool of the application."""
        if self.calls.pop(call_id, None) is None:
            return []
        return [ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, status=status)]

    def _count(self, event: UsageEvent) -> None:
        before = self.usage or Usage(total_tokens=0, input_tokens=0, output_tokens=0, cached_read_tokens=0, cached_write_tokens=0)
        read, write = (before.cached_read_tokens or 0) + event.cache_read, (before.cached_write_tokens or 0) + event.cache_write
        given, made = before.input_tokens + event.input_tokens, before.output_tokens + event.output_tokens
        self.usage = Usage(
            total_tokens=given + made + read + write,
            input_tokens=given,
            output_tokens=made,
            cached_read_tokens=read,
            cached_write_tokens=write,
        )


def _step(entry: PlanEntry) -> AcpPlanEntry:
    return AcpPlanEntry(content=entry.content, priority=entry.priority, status=entry.status)
