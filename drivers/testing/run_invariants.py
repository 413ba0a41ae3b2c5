"""One run of an agent, read to its end, and what must be so of every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drivers.contract.agent import Agent, PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.errors import AgentGone
from drivers.contract.events import (
    AwaitedCall,
    Awaiting,
    DeniedResult,
    Error,
    Event,
    OutputEvent,
    SessionEnd,
    ToolCall,
    ToolOutput,
    ToolResult,
    decode,
)
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.testing.check_outcome import Failed

REFUSED = "refused by the conformance check"


Answer = Callable[[AwaitedCall], Reply]
"""The reply to a call that waits."""


def refuse(call: AwaitedCall) -> Reply:
    """No permission, or an error text as the result."""
    return PermissionReply(call.id, "deny", REFUSED) if call.wants == "permission" else ToolReply(call.id, REFUSED)


async def ask(agent: Agent, text: str, seconds: float, answer: Answer = refuse) -> list[OutputEvent]:
    """The events of a run on this prompt."""
    await agent.prompt(Prompt(text))
    return await to_end(agent, seconds, answer)


async def to_end(agent: Agent, seconds: float, answer: Answer = refuse, clock: Clock = SYSTEM_CLOCK) -> list[OutputEvent]:
    """The events up to `session_end`; calls that wait get this answer. Raises Failed for a run without a well-formed end."""
    events: list[OutputEvent] = []
    try:
        async with clock.timeout(seconds):
            while not (events and isinstance(events[-1], SessionEnd)):
                batch = list(await agent.receive())
                events += batch
                refuse_odd(batch, "receive()")
                await _answer_calls(agent, batch, answer)
                if any(isinstance(event, SessionEnd) for event in events[:-1]):
                    raise Failed(f"session_end must be the last event of a run, once; it gave {kinds(events)}")
    except TimeoutError:
        raise Failed(f"no session_end within {seconds:g} s; it gave {kinds(events)}") from None
    except AgentGone as gone:
        raise Failed(f"the agent was gone before its session_end ({gone}); it gave {kinds(events)}") from gone
    refuse_broken(events)
    return events


def failure(events: Sequence[OutputEvent]) -> str | None:
    """How and why a run has failed; None if its exit code is 0."""
    end = events[-1]
    if not isinstance(end, SessionEnd) or not end.exit_code:
        return None
    messages = " ".join(event.message for event in events if isinstance(event, Error))
    return f"ended with exit code {end.exit_code} ({end.stop_reason}): {messages[:500]}"


def kinds(events: Sequence[object]) -> str:
    """The events' kinds, for a text: runs of the same kind as one."""
    found: list[str] = []
    for event in events:
        kind = str(getattr(event, "kind", type(event).__name__))
        if not found or found[-1] != kind:
            found.append(kind)
    return ", ".join(found[-12:]) or "no event"


def refuse_odd(events: Sequence[object], where: str) -> None:
    """Raises Failed unless each is an event that can be stored and read back."""
    for event in events:
        if not isinstance(event, Event):
            raise Failed(f"{where} gave {event!r:.200}; it must give OutputEvents (drivers/contract/events.py)")
        stored = event.tool_result() if isinstance(event, DeniedResult) else event
        if decode(event.encode()) != stored:
            raise Failed(f"{where} gave {event!r:.200}, which is not the same after it was stored and read back")


def refuse_broken(events: Sequence[OutputEvent]) -> None:
    """Raises Failed for a run whose events contradict each other."""
    end = events[-1]
    explained = any(isinstance(event, Error) for event in events)
    if isinstance(end, SessionEnd) and end.exit_code and end.stop_reason == "error" and not explained:
        raise Failed(f"a run that fails (exit code {end.exit_code}) has the reason in an `error` event; it gave {kinds(events)}")
    if isinstance(end, SessionEnd) and not end.exit_code and end.stop_reason == "error":
        raise Failed("session_end has stop_reason `error` and exit code 0, which contradict each other")
    started: set[str] = set()
    for event in events:
        if isinstance(event, ToolCall) and event.status == "started":
            started.add(event.id)
        elif isinstance(event, ToolCall) and event.id not in started:
            raise Failed(f"tool call {event.id!r} is {event.status} and was never started")
        elif isinstance(event, ToolResult) and event.tool_call_id not in started:
            raise Failed(f"there is a result of tool call {event.tool_call_id!r}, which was never started")
        elif isinstance(event, ToolOutput) and event.tool_call_id not in started:
            raise Failed(f"there is output of tool call {event.tool_call_id!r}, which was never started")


async def _answer_calls(agent: Agent, events: Sequence[OutputEvent], answer: Answer) -> None:
    for event in events:
        for call in event.calls if isinstance(event, Awaiting) else ():
            await agent.reply(answer(call))
