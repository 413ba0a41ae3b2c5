"""Tool calls that wait for the client: which they are, until when, how answers are checked, and how they are resolved once their
agent has ended. The run and the session act on it; this module neither stores nor starts anything.

An agent may end while its calls wait, or the gateway may be restarted. The history then shows which calls are pending. The
client's answers resolve them, and a fresh agent continues from the history. A call that was granted cannot be run by the gateway:
its result asks the model to make the call again, and that call then runs without asking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.driver_info import ToolSpec
from drivers.contract.events import AwaitedCall, OutputEvent, ToolCall, ToolResult
from drivers.contract.messages import AssistantMessage, Message, ToolMessage, ToolUseBlock, pending_tool_calls
from drivers.runtime.clock import SYSTEM_CLOCK, Clock, Timer
from gateway.errors import BadRequest
from gateway.events.event_log import RETRY
from gateway.policy.decision_record import denial

log = logging.getLogger(__name__)

APPROVED = "Tool call approved, but the agent was started anew before it ran. Make the same call again: it runs without asking."
INTERRUPTED = "Tool call interrupted: the agent was started anew. Whether it took effect is not known."
NO_RESULT = "Tool call allowed, but the application gave no result."

_MISSING = {"permission": "answer", "answer": "answer", "result": "result from the application"}


class PendingCalls:
    """The pending calls of one run, with the time limit for their answers.

    `timeout` is in seconds, 0 for none. `expire` is called with the `since` of the calls once it has passed; it must check that
    they are still pending. `answered` keeps the ids of earlier calls, for the text of a refusal.
    """

    def __init__(
        self,
        timeout: float = 0.0,
        expire: Callable[[float], Awaitable[None]] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.calls: dict[str, AwaitedCall] = {}
        self.since: float | None = None
        self.answered: set[str] = set()
        self._timeout, self._expire = timeout, expire
        self._timer: Timer | None = None
        self._expiring: set[asyncio.Task[None]] = set()

    def open(self, calls: Iterable[AwaitedCall], since: float | None) -> None:
        """These calls wait for the client; the time counts from `since` (seconds since the epoch), also after a restart."""
        self.stop_timer()
        self.calls, self.since = {call.id: call for call in calls}, since
        if self._timeout and self._expire is not None and since is not None:
            left = since + self._timeout - self._clock.time()
            self._timer = self._clock.call_later(max(0.0, left), self._time_over, since)

    def close(self, answered: Iterable[str] = ()) -> None:
        """Nothing waits any more: the calls were answered (those of these ids), or the run has ended."""
        self.stop_timer()
        self.calls, self.since = {}, None
        self.answered.update(answered)

    def stop_timer(self) -> None:
        """Let the calls wait without a time limit, until `open` is called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def awaits_results(self) -> bool:
        """Whether a call waits for its result from the application."""
        return any(call.wants == "result" for call in self.calls.values())

    @property
    def overdue(self) -> bool:
        """Whether the time limit has passed."""
        return bool(self._timeout) and self.since is not None and self._clock.time() >= self.since + self._timeout

    def check_answers(self, answered: Sequence[str]) -> None:
        """Raises BadRequest with the ids unless these are exactly the pending calls, each once; optional ones may be left out."""
        if not self.calls:
            raise BadRequest(f"no tool call is pending in this session, so {ids(answered)} cannot be answered")
        unknown = [call_id for call_id in answered if call_id not in self.calls]
        if unknown:
            raise BadRequest(f"{ids(unknown)} is not a pending tool call; pending are {ids(sorted(self.calls))}")
        if len(set(answered)) != len(answered):
            raise BadRequest(f"a tool call is answered twice in {ids(answered)}; answer each once")
        missing = sorted(call.id for call in self.calls.values() if not call.optional and call.id not in answered)
        if missing:
            raise BadRequest(f"{ids(missing)} is still pending; answer all pending calls in one request")

    def denials(self) -> list[Reply]:
        """The replies to calls that the client has not answered in time."""
        return [
            PermissionReply(call.id, "deny", reason=f"no {_MISSING[call.wants]} within {self._timeout:g} s")
            for call in self.calls.values()
            if not call.optional
        ]

    def _time_over(self, since: float) -> None:
        task = asyncio.create_task(self._expired(since))
        self._expiring.add(task)
        task.add_done_callback(self._expiring.discard)

    async def _expired(self, since: float) -> None:
        try:
            if self._expire is not None:
                await self._expire(since)
        except Exception:
            log.exception("the calls %s, which were not answered in time, cannot be denied; trying again", ids(self.calls))
            if self.since == since:
                self._timer = self._clock.call_later(RETRY, self._time_over, since)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of the pending calls of an agent that has ended.

    `results` are stored beside those of the client; `events` report the end of each call; `approved` are the calls that run
    without asking when the model makes them again.
    """

    results: tuple[Message, ...] = ()
    events: tuple[OutputEvent, ...] = ()
    approved: tuple[ToolUseBlock, ...] = ()


def resolve(history: Iterable[Message], calls: Mapping[str, AwaitedCall], replies: Sequence[Reply]) -> Resolution:
    """Resolve every call without a result by the client's replies; `calls` are those that wait for it."""
    given = {reply.call_id: reply for reply in replies}
    results: list[Message] = []
    events: list[OutputEvent] = []
    approved: list[ToolUseBlock] = []
    for call_id, call in unanswered(history).items():
        reply = given.get(call_id)
        if isinstance(reply, ToolReply):
            events.append(ToolCall(id=call_id, name=call.name, status="completed"))
            continue
        result = _result(reply, calls.get(call_id))
        if result == APPROVED:
            approved.append(call)
        results.append(ToolMessage(tool_call_id=call_id, content=result))
        events.append(ToolResult(tool_call_id=call_id, output=result, is_error=True))
        events.append(ToolCall(id=call_id, name=call.name, status="failed"))
    return Resolution(tuple(results), tuple(events), tuple(approved))


def _result(reply: PermissionReply | None, call: AwaitedCall | None) -> str:
    if reply is None:
        return INTERRUPTED
    if not reply.allowed:
        return denial(reply.reason)
    return NO_RESULT if call is not None and call.wants == "result" else APPROVED


def client_results(replies: Iterable[Reply]) -> list[ToolMessage]:
    """The results among the client's replies, as messages of the history."""
    return [ToolMessage(tool_call_id=r.call_id, content=r.content) for r in replies if isinstance(r, ToolReply)]


def pending_in(
    history: Iterable[Message],
    runs_at_once: Callable[[ToolUseBlock], bool],
    app_tools: Iterable[ToolSpec] | None,
    question_tools: Collection[str] = (),
) -> list[AwaitedCall]:
    """The calls that a history ends in, as they wait for the client.

    Calls of `question_tools` wait for the user's answer. Those that `runs_at_once` without the client's permission are optional,
    unless there are no others.
    """
    app = {tool.name for tool in app_tools or ()}
    found = pending_tool_calls(history)
    asking = app | {*question_tools}
    blocked = {call_id for call_id, call in found.items() if call.name not in asking and runs_at_once(call)}
    optional = blocked if len(blocked) < len(found) else set()
    return [
        AwaitedCall(
            id=call_id,
            wants="result" if call.name in app else "answer" if call.name in question_tools else "permission",
            optional=call_id in optional,
        )
        for call_id, call in found.items()
    ]


def ends_pending(history: Sequence[Message]) -> bool:
    """Whether a history stops at calls that wait for their answers: only results of other calls come after them."""
    tail = next((m for m in reversed(history) if not isinstance(m, ToolMessage)), None)
    return isinstance(tail, AssistantMessage) and bool(pending_tool_calls(history))


def unanswered(history: Iterable[Message]) -> dict[str, ToolUseBlock]:
    """Every call without a result, wherever it stands; while a sub-agent asks, its own call is an earlier one."""
    found: dict[str, ToolUseBlock] = {}
    for message in history:
        if isinstance(message, AssistantMessage):
            if not isinstance(message.content, str):
                found |= {block.tool_call_id: block for block in message.content if isinstance(block, ToolUseBlock)}
        elif isinstance(message, ToolMessage):
            found.pop(message.tool_call_id, None)
    return found


def ids(call_ids: Iterable[str]) -> str:
    """Call ids for an error text."""
    return ", ".join(repr(call_id) for call_id in call_ids)
