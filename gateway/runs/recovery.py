"""The start after a daemon that was killed: its agents are ended, the runs at work are closed with an error, those that wait for
the client go on waiting. Nothing stored is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from drivers.contract.events import Error, OutputEvent, SessionEnd, ToolCall
from drivers.contract.messages import (
    MESSAGE,
    AssistantMessage,
    Message,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
    pending_tool_calls,
)
from drivers.runtime.process_tree import end_marked, end_tree
from gateway.events.log_entries import decode
from gateway.events.messages import Fold
from gateway.store import EventRow, RunRecord, Store

log = logging.getLogger(__name__)

WHY = "the gateway was stopped in the middle of this run; send the message again"


UNSEEN = 1_000_000
"""More numbers than a killed daemon can have shown of events that were not stored yet: none of them is given twice."""


async def end_left_behind(store: Store, instance: str, grace: float = 1.0) -> int:
    """End the agent processes of an earlier daemon with this data directory, by pid and start time, and every stray of
    theirs by its marker. The number of processes found."""
    found = 0
    for marker, pid, created in await store.processes.all():
        found += await asyncio.to_thread(end_tree, pid, created, grace)
        await store.processes.ended(marker)
    found += await asyncio.to_thread(end_marked, f"{instance}.", grace)
    if found:
        log.warning("ended %d processes of agents that an earlier daemon left behind", found)
    return found


async def close_open_runs(store: Store, seeds: Callable[[str], bool] = lambda agent: True) -> int:
    """Give every run that was at work its missing messages, an error and a `session_end`. The number of runs.

    What a CLI has kept of such a run may be less, or more: its native session is forgotten where its agent can be given a
    history, as `seeds` says by the agent's name.
    """
    runs = [run for run in await store.runs.unfinished() if not await _waits(store, run)]
    for run in runs:
        await _close(store, run)
        session = await store.sessions.get(run.log_id)
        if session is not None and seeds(session.agent):
            await store.sessions.update(session.id, native_id=None)
    return len(runs)


async def _waits(store: Store, run: RunRecord) -> bool:
    """Whether the client can still answer: what its calls need was stored before it was told of them."""
    if run.state != "waiting" or not await store.sessions.get(run.log_id):
        return False
    return bool(pending_tool_calls(MESSAGE.validate_json(body) for body in await store.messages.bodies(run.log_id)))


async def _close(store: Store, run: RunRecord) -> None:
    last = await store.events.last_seq(run.log_id)
    ending: list[OutputEvent] = [Error(message=WHY), SessionEnd(exit_code=1, stop_reason="error")]
    if await store.sessions.get(run.log_id):
        missing = await _missing_messages(store, run, ending)
        await store.messages.append(run.log_id, [message.model_dump_json() for message in missing])
    body = b"\n".join(event.encode() for event in ending)
    first = last + UNSEEN + 1
    await store.runs.stop(run.id, "ended", "error", EventRow(run.log_id, first, first + len(ending) - 1, body))


async def _missing_messages(store: Store, run: RunRecord, ending: list[OutputEvent]) -> list[Message]:
    """What the stored events of a run tell beyond its stored messages."""
    stored = [MESSAGE.validate_json(body) for body in await store.messages.bodies(run.log_id)]
    folded, before = await _fold(store, run, ending)
    known = _behind(stored, [message for message in folded if isinstance(message, UserMessage)], before)
    said = sum(isinstance(message, UserMessage) for message in known)
    answered = {m.tool_call_id for m in known if isinstance(m, ToolMessage)}
    assistants = sum(isinstance(m, AssistantMessage) for m in known)
    missing: list[Message] = []
    for message in folded:
        if isinstance(message, AssistantMessage):
            assistants -= 1
            if assistants < 0:
                missing.append(message)
        elif isinstance(message, UserMessage):
            said -= 1
            if said < 0:
                missing.append(message)
        elif isinstance(message, ToolMessage) and message.tool_call_id not in answered:
            missing.append(message)
    return missing


def _calls(message: Message) -> set[str]:
    content = blocks(message.content) if isinstance(message, AssistantMessage) else ()
    return {block.tool_call_id for block in content if isinstance(block, ToolUseBlock)}


def _behind(stored: Sequence[Message], steered: Sequence[Message], before: set[str]) -> Sequence[Message]:
    """The stored messages behind what the run began with: its prompt, or calls that it was given in the history.

    The first of `steered`, said to the run later, may be among them.
    """
    starts = [n for n, message in enumerate(stored, 1) if isinstance(message, UserMessage) or _calls(message) & before]
    for count in range(min(len(steered), len(starts) - 1), -1, -1):
        later = starts[len(starts) - count :]
        if [stored[n - 1] for n in later] == list(steered[:count]):
            return stored[starts[-1 - count] :] if starts else stored
    return stored


async def _fold(store: Store, run: RunRecord, ending: list[OutputEvent]) -> tuple[list[Message], set[str]]:
    """The messages of a run's stored events, and the calls that end in it but began before it, in the history it was given."""
    fold, folded, after = Fold(), list[Message](), run.first_seq - 1
    began, before = set[str](), set[str]()
    while rows := await store.events.read(run.log_id, after):
        for first, body in rows:
            for seq, line in enumerate(body.split(b"\n"), first):
                if seq > after:
                    event = decode(line)
                    folded += fold.feed(event)
                    if isinstance(event, ToolCall) and event.status == "started":
                        began.add(event.id)
                    elif isinstance(event, ToolCall) and event.id not in began:
                        before.add(event.id)
                    after = seq
    for event in ending:
        folded += fold.feed(event)
    return folded, before
