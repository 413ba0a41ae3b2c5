"""Numbers for the messages of a run that a store of version 4 holds, which did not store the event that completed a message.

Used once for each run that had not ended when the store was migrated. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from drivers.contract.events import SessionEnd, ToolCall
from drivers.contract.messages import AssistantMessage, Message, ToolMessage, ToolUseBlock, UserMessage, blocks
from gateway.events.log_entries import LogEvent, TurnStart
from gateway.events.messages import Fold


def number_messages(stored: Sequence[Message], events: Sequence[tuple[int, LogEvent]]) -> list[int | None]:
    """Returns a number for each stored message of a session: that of the event that completed it.

    `events` are those of the session's last run. The n-th assistant message of the run is the n-th that its events complete,
    a tool result is the one with its call id. None for messages before the run's first output.
    """
    completed, given, calls_before = _completed(events)
    users = [(seq, message) for seq, message in completed if isinstance(message, UserMessage)]
    first = _first_of_run(stored, [message for _, message in users], calls_before)
    # What the events do not complete was stored after the last event that was.
    beyond = (events[-1][0] if events else 0) + 1
    assistants = iter([seq for seq, message in completed if isinstance(message, AssistantMessage)])
    steered = iter([seq for seq, _ in users])
    results = {message.tool_call_id: seq for seq, message in completed if isinstance(message, ToolMessage)} | given
    numbers: list[int | None] = [None] * first
    greatest = 0
    for message in stored[first:]:
        if isinstance(message, ToolMessage):
            seq = results.get(message.tool_call_id, beyond)
        else:
            seq = next(assistants if isinstance(message, AssistantMessage) else steered, beyond)
        greatest = max(greatest, seq)
        numbers.append(greatest)
    return numbers


def _completed(events: Sequence[tuple[int, LogEvent]]) -> tuple[list[tuple[int, Message]], dict[str, int], set[str]]:
    """Returns the messages that the events complete, the results that the client gave, and calls that began before the run."""
    fold, completed = Fold(divides=False), list[tuple[int, Message]]()
    given, began, before = dict[str, int](), set[str](), set[str]()
    for seq, event in events:
        completed += [(seq, message) for message in fold.feed(event)]
        if isinstance(event, TurnStart):
            given |= {message.tool_call_id: seq for message in event.messages if isinstance(message, ToolMessage)}
        elif isinstance(event, ToolCall):
            if event.status == "started":
                began.add(event.id)
            elif event.id not in began:
                before.add(event.id)
    if events:
        # A message whose last events were not stored.
        beyond = events[-1][0] + 1
        completed += [(beyond, message) for message in fold.feed(SessionEnd(exit_code=1)) if not isinstance(message, ToolMessage)]
    return completed, given, before


def _first_of_run(stored: Sequence[Message], steered: Sequence[Message], calls_before: set[str]) -> int:
    """Returns the position behind what the run began with: its prompt, or calls of the history that the session was created with.

    The first of `steered`, which the run completes, may be among the stored messages.
    """
    starts = [n for n, message in enumerate(stored, 1) if isinstance(message, UserMessage) or _calls(message) & calls_before]
    for count in range(min(len(steered), len(starts) - 1), -1, -1):
        later = starts[len(starts) - count :]
        if [stored[n - 1] for n in later] == list(steered[:count]):
            return starts[-1 - count] if starts else 0
    return 0


def _calls(message: Message) -> set[str]:
    content = blocks(message.content) if isinstance(message, AssistantMessage) else ()
    return {block.tool_call_id for block in content if isinstance(block, ToolUseBlock)}
