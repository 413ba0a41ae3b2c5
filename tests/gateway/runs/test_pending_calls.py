"""Pending calls without a live agent: they are found in the history, and replies resolve them."""

from __future__ import annotations

from drivers.contract.agent import PermissionReply, ToolReply
from drivers.contract.driver_info import ToolSpec
from drivers.contract.events import AwaitedCall, ToolCall, ToolResult
from drivers.contract.messages import AssistantMessage, Message, ToolMessage, ToolUseBlock, UserMessage
from gateway.policy.enforcement import EarlierGrants
from gateway.runs.pending_calls import APPROVED, INTERRUPTED, NO_RESULT, pending_in, resolve, unanswered

WEATHER = ToolSpec("weather", "", {})


def use(call_id: str, name: str, **given: object) -> ToolUseBlock:
    return ToolUseBlock(tool_call_id=call_id, name=name, input=given)


HISTORY: list[Message] = [
    UserMessage(content="Go"),
    AssistantMessage(content=(use("agent", "Agent"),)),
    AssistantMessage(content=(use("app", "weather"), use("shell", "Bash", command="ls"), use("file", "Write"))),
]


def runs_at_once(call: ToolUseBlock) -> bool:
    return call.name in ("Agent", "Write")


def test_pending_calls_of_a_history() -> None:
    assert pending_in(HISTORY, runs_at_once, [WEATHER]) == [
        AwaitedCall(id="app", wants="result"),
        AwaitedCall(id="shell", wants="permission"),
        AwaitedCall(id="file", wants="permission", optional=True),
    ]
    answered = [*HISTORY, ToolMessage(tool_call_id="app", content="x")]
    assert {call.id for call in pending_in(answered, runs_at_once, [WEATHER])} == {"shell", "file"}
    assert list(unanswered(answered)) == ["agent", "shell", "file"]


def test_single_pending_call_is_never_optional() -> None:
    [call] = pending_in([AssistantMessage(content=(use("file", "Write"),))], runs_at_once, None)
    assert not call.optional
    assert pending_in([UserMessage(content="Go")], runs_at_once, None) == []


def test_resolution_has_a_result_for_every_pending_call() -> None:
    calls = {call.id: call for call in pending_in(HISTORY, runs_at_once, [WEATHER])}
    resolution = resolve(HISTORY, calls, [ToolReply("app", "rain"), PermissionReply("shell", "allow")])
    assert resolution.results == (
        ToolMessage(tool_call_id="agent", content=INTERRUPTED),
        ToolMessage(tool_call_id="shell", content=APPROVED),
        ToolMessage(tool_call_id="file", content=INTERRUPTED),
    )
    assert [call.tool_call_id for call in resolution.approved] == ["shell"]
    ended = {event.id: event.status for event in resolution.events if isinstance(event, ToolCall)}
    assert ended == {"agent": "failed", "app": "completed", "shell": "failed", "file": "failed"}
    assert [e.tool_call_id for e in resolution.events if isinstance(e, ToolResult)] == ["agent", "shell", "file"]


def test_denied_call_has_the_reason_as_result() -> None:
    calls = {call.id: call for call in pending_in(HISTORY, runs_at_once, [WEATHER])}
    replies = [PermissionReply("app", "allow"), PermissionReply("shell", "deny", "no"), PermissionReply("file", "deny")]
    results = resolve(HISTORY, calls, replies).results
    texts = [message.content for message in results]
    assert texts == [INTERRUPTED, NO_RESULT, "Tool call denied: no", "Tool call denied"]


def test_earlier_grant_applies_to_one_call_only() -> None:
    grants = EarlierGrants([use("old", "Bash", command="ls")])
    assert not grants.take(use("a", "Bash", command="rm"))
    assert grants.take(use("b", "Bash", command="ls"))
    assert not grants.take(use("c", "Bash", command="ls"))
