"""Recovery when the daemon starts after it was killed: ends agent processes that were left running, and closes runs.

A run that was running ends with an error, with all messages that its stored events complete; one whose `session_end` is stored
ends as that states. A run that waits for its client goes on waiting.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

from drivers.contract.events import Error, OutputEvent, SessionEnd
from drivers.contract.messages import MESSAGE, Message, ToolMessage, UserMessage, pending_tool_calls
from drivers.runtime.launchers import leaves_behind, remove_left_behind
from drivers.runtime.process_tree import Root, described, end_processes, left_behind
from gateway.config import Runtime
from gateway.events.log_entries import LogEvent, TurnStart, decode
from gateway.events.messages import Fold, message_row
from gateway.runs.agent_output import failure_of
from gateway.runs.stored_history import StoredHistory
from gateway.store import EventRow, FailureRecord, MessageRow, RunRecord, Store

log = logging.getLogger(__name__)

WHY = "the gateway was stopped in the middle of this run; send the message again"
UNSEEN = 1_000_000
"""How many event numbers are skipped: more than a killed daemon can have sent to clients without storing them.

No number is given to two events.
"""
_endings = set[asyncio.Task[list[str]]]()


async def end_left_behind(store: Store, grace: float = 1.0, *, instance: str | None = None) -> list[str]:
    """Ends the agent processes of an earlier daemon with this store. Returns the markers of those of which launchers may have
    left something behind.

    They are found by the stored pid and start time, and their orphans by the stored marker. `grace` is in seconds. An entry of
    a process that has ended already is deleted; a failure of that does not prevent the start. `remove_of_launchers` deletes the
    entries whose markers are returned. If the search is late, the start does not wait for it: it goes on in the background.

    Parameters:
        instance: In a cluster, the one whose processes are ended. The caller has the lock of this one's id.
    """
    entries = await store.processes.all()
    if instance is not None:
        # The others are processes of other machines.
        entries = [entry for entry in entries if entry[0].startswith(f"{instance}.")]
    late = asyncio.Event()
    ending = asyncio.create_task(_end_left_behind(store, entries, grace, late.set))
    _endings.add(ending)
    ending.add_done_callback(_endings.discard)
    waiting = asyncio.create_task(late.wait())
    await asyncio.wait([ending, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if ending.done():
        return ending.result()
    log.warning("the search for processes of an earlier daemon's agents is late, and goes on in the background")
    return []


async def _end_left_behind(
    store: Store, entries: Sequence[tuple[str, int, float]], grace: float, late: Callable[[], None]
) -> list[str]:
    roots = [Root.stored(*entry) for entry in entries]
    ended = await end_processes(functools.partial(left_behind, roots), grace, late)
    if ended.found:
        log.warning("ended %d processes of agents that an earlier daemon left behind", len(ended.found) - len(ended.left))
    if ended.left:
        log.warning("processes of an earlier daemon's agents still run after SIGKILL: %s", described(ended.left))
    left = {process.pid for process in ended.left}
    gone = [marker for marker, pid, _ in entries if pid not in left]
    await _delete(store, [marker for marker in gone if not leaves_behind(marker)])
    return [marker for marker in gone if leaves_behind(marker)]


async def remove_of_launchers(
    store: Store, instance: str, markers: Collection[str], runtimes: Collection[Runtime], environ: Mapping[str, str] = os.environ
) -> None:
    """Removes what the launchers of an earlier daemon with this data directory left behind: in the `runtimes` of the
    configuration, and of the `markers` of stored processes, which are deleted then.

    A runtime may not answer: nothing but agents in its containers waits for this. It raises nothing.
    """
    await _delete(store, await remove_left_behind(instance, markers, runtimes, environ))


async def _delete(store: Store, markers: Sequence[str]) -> None:
    try:
        await store.processes.ended(*markers)
    except Exception as error:
        log.warning("the end of an earlier daemon's processes cannot be stored: %s", error)


async def close_open_runs(store: Store, seeds: Callable[[str], bool] = lambda agent: True, log_id: str | None = None) -> int:
    """Ends every run that was running, with its missing messages, an error and a `session_end`. Returns how many there were.

    With `log_id` only those of one log.

    What is stored after the end of a run, or after the beginning of a later one, is not taken for its output.

    The CLI may have stored less of such a run, or more: its native session is not resumed where the agent can be given a
    history, as `seeds` answers by the agent's name.
    """
    unfinished = await store.runs.unfinished(log_id)
    runs = [run for run in unfinished if not await _waits(store, run)]
    for run in runs:
        session = await store.sessions.get(run.log_id)
        if session is not None and seeds(session.agent):
            await store.sessions.update(session.id, native_id=None)
        await _close(store, run, has_history=session is not None)
    return len(runs)


async def _waits(store: Store, run: RunRecord) -> bool:
    """Returns whether the client can still answer: the messages with its calls were stored before the run began to wait."""
    if run.state != "waiting" or not await store.sessions.get(run.log_id):
        return False
    return bool(pending_tool_calls(await StoredHistory(store, run.log_id).unanswered_calls()))


async def _close(store: Store, run: RunRecord, *, has_history: bool) -> None:
    if await store.runs.next_first_seq(run):
        # Its messages belong before those of the later run, and positions in a history do not change.
        return await store.runs.end(run, "error")
    end = await _own_end(store, run)
    if end is not None:
        missing, failure = await _missing_messages(store, run, []) if has_history else ([], None)
        return await store.runs.end(run, end.stop_reason, messages=missing, failure=failure, kept=end.prompt_kept)
    first = await store.events.last_seq(run.log_id) + UNSEEN + 1
    ends: list[OutputEvent] = [Error(message=WHY), SessionEnd(exit_code=1, stop_reason="error")]
    missing, failure = await _missing_messages(store, run, list(enumerate(ends, first))) if has_history else ([], None)
    row = EventRow(run.log_id, first, first + len(ends) - 1, b"\n".join(event.encode() for event in ends))
    await store.runs.end(run, "error", row, missing, failure)


async def waiting_messages(store: Store, run: RunRecord) -> tuple[UserMessage, ...]:
    """Returns the messages to the agent at work of a run that waits for its client, which are in the history after its calls."""
    fold = Fold()
    async for _, event in _events(store, run):
        fold.feed(event)
        if isinstance(event, TurnStart):
            for message in event.messages:
                if isinstance(message, ToolMessage):
                    fold.answer(message.tool_call_id)
    return fold.waiting_messages


async def _own_end(store: Store, run: RunRecord) -> SessionEnd | None:
    """Returns the `session_end` of a run whose last event was stored, and whose state was not."""
    async for _, event in _events(store, run):
        if isinstance(event, SessionEnd):
            return event
    return None


async def _missing_messages(
    store: Store, run: RunRecord, end: Sequence[tuple[int, OutputEvent]]
) -> tuple[list[MessageRow], FailureRecord | None]:
    """Returns what the events of a run, and the events that now end it, complete beyond its stored messages, and why it failed.

    Messages are stored in the order of their numbers, so that those before the greatest stored number are there.
    """
    greatest = of_greatest = 0
    results = defaultdict[int, list[str]](list)
    async for seq, message in _stored(store, run.log_id, run.first_seq):
        of_greatest = 1 if seq > greatest else of_greatest + (seq == greatest)
        greatest = max(greatest, seq)
        if isinstance(message, ToolMessage):
            results[seq].append(message.tool_call_id)
    fold, missing = Fold(), list[tuple[int, Message]]()
    failure: FailureRecord | None = None
    async for seq, event in _events(store, run):
        completed = fold.feed(event)
        if seq >= greatest:
            missing += [(seq, message) for message in (completed if seq > greatest else completed[of_greatest:])]
        # Results that the client or the gateway has given to calls are stored with the number of the turn's first event.
        for call_id in results.pop(seq, ()):
            fold.answer(call_id)
        failure = failure_of(fold, event)
    for seq, event in end:
        missing += [(seq, message) for message in fold.feed(event)]
        failure = failure_of(fold, event)
    return [message_row(message, seq) for seq, message in missing], failure


async def _stored(store: Store, session_id: str, first_seq: int) -> AsyncIterator[tuple[int, Message]]:
    """Yields the stored messages with numbers from `first_seq` on, a few at a time."""
    position = -1
    while rows := await store.messages.rows_from(session_id, first_seq, position):
        for _, row in rows:
            yield row.seq or 0, MESSAGE.validate_json(row.body)
        position = rows[-1][0]


async def _events(store: Store, run: RunRecord) -> AsyncIterator[tuple[int, LogEvent]]:
    """Yields the stored events of a run with their numbers: up to its `session_end`, or to the first event of a later run."""
    after, until = run.first_seq - 1, await store.runs.next_first_seq(run)
    while rows := await store.events.read(run.log_id, after):
        for first, body in rows:
            for seq, line in enumerate(body.split(b"\n"), first):
                if seq <= after:
                    continue
                if until is not None and seq >= until:
                    return
                event = decode(line)
                yield seq, event
                if isinstance(event, SessionEnd):
                    return
                after = seq
