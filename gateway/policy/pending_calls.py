"""Open calls that outlive their agent: its process has ended, or the gateway was started anew. Pure.

The history says which calls are open. The client's answers close them, and a fresh agent goes on from there; a call that was
granted cannot be run by the gateway, so the model is told to make it again, and that one then runs without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.events import AwaitedCall, OutputEvent, ToolCall, ToolResult
from drivers.contract.info import ToolSpec
from drivers.contract.messages import AssistantMessage, Message, ToolMessage, ToolUseBlock, blocks, pending_tool_calls
from gateway.errors import BadRequest

APPROVED = "Tool call approved, but the agent was started anew before it ran. Make the same call again: it runs without asking."
INTERRUPTED = "Tool call interrupted: the agent was started anew. Whether it took effect is not known."
NO_RESULT = "Tool call allowed, but the application gave no result."
DENIED = "Tool call denied"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of all open calls: `results` beside those that the client gave, `events` that tell of all of them, and the
    calls that are `approved` when the model makes them again."""

    results: tuple[Message, ...] = ()
    events: tuple[OutputEvent, ...] = ()
    approved: tuple[ToolUseBlock, ...] = ()


def waiting_calls(
    history: Iterable[Message], runs_at_once: Callable[[ToolUseBlock], bool], app_tools: Iterable[ToolSpec] | None
) -> dict[str, AwaitedCall]:
    """The calls that a history ends in, as they wait for the client; it need not answer those that could run without it."""
    app = {tool.name for tool in app_tools or ()}
    found = pending_tool_calls(history)
    blocked = {call_id for call_id, call in found.items() if call.name not in app and runs_at_once(call)}
    optional = blocked if len(blocked) < len(found) else set()
    return {
        call_id: AwaitedCall(id=call_id, wants="result" if call.name in app else "permission", optional=call_id in optional)
        for call_id, call in found.items()
    }


def refuse_wrong_answers(answered: Sequence[str], calls: Mapping[str, AwaitedCall]) -> None:
    """Raises BadRequest naming the ids unless these are exactly the calls that wait, each once."""
    if not calls:
        raise BadRequest(f"no tool call is open in this session, so {ids(answered)} cannot be answered; send a user message")
    unknown = [call_id for call_id in answered if call_id not in calls]
    if unknown:
        raise BadRequest(f"{ids(unknown)} is not an open tool call; open are {ids(sorted(calls))}")
    if len(set(answered)) != len(answered):
        raise BadRequest(f"a tool call is answered twice in {ids(answered)}; answer each once")
    missing = sorted(call.id for call in calls.values() if not call.optional and call.id not in answered)
    if missing:
        raise BadRequest(f"{ids(missing)} is still open; answer all open calls in one request")


def ids(call_ids: Iterable[str]) -> str:
    """Ids, for a text."""
    return ", ".join(repr(call_id) for call_id in call_ids)


def ends_open(history: Sequence[Message]) -> bool:
    """Whether a history stops at calls that wait for their answers: after them come only those of other calls."""
    tail = next((m for m in reversed(history) if not isinstance(m, ToolMessage)), None)
    return isinstance(tail, AssistantMessage) and bool(pending_tool_calls(history))


def unanswered(history: Iterable[Message]) -> dict[str, ToolUseBlock]:
    """Every call without a result, wherever it stands; while a sub-agent asks, its own call is an earlier one."""
    found: dict[str, ToolUseBlock] = {}
    for message in history:
        if isinstance(message, AssistantMessage):
            found |= {block.tool_call_id: block for block in blocks(message.content) if isinstance(block, ToolUseBlock)}
        elif isinstance(message, ToolMessage):
            found.pop(message.tool_call_id, None)
    return found


def resolve(history: Iterable[Message], calls: Mapping[str, AwaitedCall], replies: Sequence[Reply]) -> Resolution:
    """Close every open call by the client's answers."""
    given = {reply.call_id: reply for reply in replies}
    results: list[Message] = []
    events: list[OutputEvent] = []
    approved: list[ToolUseBlock] = []
    for call_id, call in unanswered(history).items():
        reply = given.get(call_id)
        if isinstance(reply, ToolReply):
            events.append(ToolCall(id=call_id, name=call.name, status="completed"))
            continue
        said = _said(reply, calls.get(call_id))
        if said == APPROVED:
            approved.append(call)
        results.append(ToolMessage(tool_call_id=call_id, content=said))
        events.append(ToolResult(tool_call_id=call_id, output=said, is_error=True))
        events.append(ToolCall(id=call_id, name=call.name, status="failed"))
    return Resolution(tuple(results), tuple(events), tuple(approved))


def _said(reply: PermissionReply | None, call: AwaitedCall | None) -> str:
    if reply is None:
        return INTERRUPTED
    if not reply.granted:
        return f"{DENIED}: {reply.reason}" if reply.reason else DENIED
    return NO_RESULT if call is not None and call.wants == "result" else APPROVED


class Approvals:
    """Calls that the client has granted to an agent that is gone. Each lets one call with the same name and input pass."""

    def __init__(self, calls: Iterable[ToolUseBlock] = ()) -> None:
        self._calls: list[tuple[str, object]] = [(call.name, call.input) for call in calls]

    def take(self, call: ToolUseBlock) -> bool:
        """Whether this call passes; the next one like it then does not."""
        made = (call.name, call.input)
        if made not in self._calls:
            return False
        self._calls.remove(made)
        return True
