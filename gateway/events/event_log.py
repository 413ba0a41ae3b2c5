"""The log of a session or a task: numbered events, followed by any number of readers from any number.

The newest events are held in memory, and all are written to the store in the background, each with the messages that it
completes; a reader that is further back than the memory reads from the store. Nothing is ever dropped: when too much is
unwritten, the writer of events waits, and with it the agent's pipe.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from drivers.contract.events import Awaiting, SessionEnd
from gateway.errors import StoreAbandoned
from gateway.events.log_entries import LogEvent, decode
from gateway.store import EventRow, MessageRow, Store

log = logging.getLogger(__name__)

OVERHEAD = 600
"""Bytes that an event takes in memory besides its JSON, about; counted in both limits below."""
KEPT_BYTES = 2 * 1024 * 1024
"""How many bytes of the newest events, as JSON, stay in memory once they are stored."""
UNWRITTEN_BYTES = 16 * 1024 * 1024
"""How many bytes may wait to be stored before the agent is not read any more."""
ROW_BYTES = 1024 * 1024
"""About how much one stored row holds; a larger single event has a row of its own."""
RETRY, LAST_TRY = 1.0, 5.0
"""Seconds between tries of a store that fails; seconds that a shutdown waits for it."""
READ_EVENTS = 2048
"""The most events that one read returns, so that many readers take turns."""


class Entry(NamedTuple):
    """A numbered event with its JSON."""

    seq: int
    event: LogEvent
    data: bytes


class EventLog:
    """`append`, `publish` and `wait_for_capacity` are for its one writer, `read` is for all readers.

    `last` is the number of the last event that is stored. With `stored_first`, readers get an event once it is stored.
    """

    def __init__(self, log_id: str, store: Store, last: int = 0, *, stored_first: bool = False) -> None:
        self.log_id, self._stored_first = log_id, stored_first
        self._store = store
        self._recent: deque[Entry] = deque()
        self._kept = 0
        self._unwritten: list[Entry] = []
        self._unwritten_messages: deque[MessageRow] = deque()
        self._unwritten_bytes = 0
        self._stored = self.last = last
        self._waiters: set[asyncio.Future[None]] = set()
        self._batch_stored = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    def append(self, events: Iterable[LogEvent], messages: Sequence[MessageRow] = ()) -> None:
        """Number the events, publish them to the readers, and have them written in the background.

        Each message, which has the number of one of these events, is stored in one transaction with that event: the stored
        history is always what the stored events complete.
        """
        self._unwritten_messages += messages
        self._unwritten_bytes += sum(len(message.body) for message in messages)
        for event in events:
            entry = Entry(self.last + 1, event, event.encode())
            self._hold(entry)
            self._unwritten.append(entry)
            self._unwritten_bytes += len(entry.data) + OVERHEAD
        if not self._stored_first:
            self._wake()
        if self._writer is None and self._unwritten:
            self._writer = asyncio.create_task(self._write())

    async def following(self, event: LogEvent) -> Entry:
        """The entry of an event that its writer stores by itself, with what belongs to it, and then passes to `publish`.

        All before it is on disk by now, so that a reader who got this event finds the same after a kill. Nothing may be appended
        in between.
        """
        await self.written()
        return Entry(self.last + 1, event, event.encode())

    def row(self, entry: Entry) -> EventRow:
        """The row of a single entry."""
        return EventRow(self.log_id, entry.seq, entry.seq, entry.data)

    async def store_stop(
        self, run_id: str, event: Awaiting | SessionEnd, now: float, messages: Sequence[MessageRow] = ()
    ) -> Entry:
        """Store the last event of a turn, the messages that it completes, and that the run waits (since `now`) or has ended.

        `publish` the entry then.
        """
        entry = await self.following(event)
        if isinstance(event, SessionEnd):
            await self._store.runs.stop(run_id, "ended", event.stop_reason, self.row(entry), messages=messages)
        else:
            await self._store.runs.stop(run_id, "waiting", None, self.row(entry), waiting_since=now, messages=messages)
        return entry

    def publish(self, entry: Entry) -> None:
        """Give the readers an entry that is stored already."""
        self._hold(entry)
        if not self._unwritten:
            self._stored = entry.seq
        self._wake()

    def _hold(self, entry: Entry) -> None:
        self.last = entry.seq
        self._recent.append(entry)
        self._kept += len(entry.data) + OVERHEAD

    @property
    def unwritten(self) -> int:
        """Bytes that wait to be stored, about."""
        return self._unwritten_bytes

    async def wait_for_capacity(self) -> None:
        """Wait until less than UNWRITTEN_BYTES is unwritten: back-pressure on the agent while the store is far behind."""
        while self._unwritten_bytes > UNWRITTEN_BYTES and self._writer is not None:
            await self._batch_stored.wait()

    async def written(self) -> None:
        """Wait until all that was appended before this call is on disk, or the store has failed for long."""
        last = self.last
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_TRY):
                while self._stored < last and self._writer is not None:
                    await self._batch_stored.wait()

    @property
    def _readable(self) -> int:
        """The number of the last event that readers get. Those of a closed log get its end also if that cannot be stored."""
        return self._stored if self._stored_first and not self._closed else self.last

    async def read(self, after: int) -> list[Entry]:
        """Events after a number, in order, as many as there are (at most READ_EVENTS); waits for the first. Safe to cancel.

        Empty only once the log is closed and nothing more comes.
        """
        while after >= self._readable:
            if self._closed:
                return []
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        if self._recent and self._recent[0].seq <= after + 1:
            return self._from_memory(after)
        return await self._from_store(after)

    def _from_memory(self, after: int) -> list[Entry]:
        newest, last = self._recent[-1].seq, self._readable
        if newest - after <= READ_EVENTS:
            # The common case: a reader that keeps up reads the last few, and a deque is quick from its ends only.
            return [self._recent[-n] for n in range(newest - after, newest - last, -1)]
        skip = after + 1 - self._recent[0].seq
        end = min(skip + READ_EVENTS, len(self._recent) - (newest - last))
        return [entry for n, entry in enumerate(self._recent) if skip <= n < end]

    async def _from_store(self, after: int) -> list[Entry]:
        rows = await self._store.events.read(self.log_id, after, rows=4)
        found = [
            Entry(seq, decode(line), line)
            for first, body in rows
            for seq, line in enumerate(body.split(b"\n"), first)
            if seq > after
        ]
        return found or self._from_memory(after)

    def close(self) -> None:
        """Nothing more comes: readers that have everything get an empty list."""
        self._closed = True
        self._wake()

    async def _write(self) -> None:
        try:
            # The readers get the rest from memory; the next start of the daemon reports it as a gap.
            with suppress(StoreAbandoned):
                await self._write_all()
        finally:
            self._writer = None
            self._end_waits()

    async def _write_all(self) -> None:
        while self._unwritten:
            batch = self._next_batch()
            messages = self._messages_through(batch[-1].seq)
            await self._store_batch(batch, messages)
            # An entry that was published behind the last batch is stored already.
            self._stored = batch[-1].seq if self._unwritten else self.last
            self._unwritten_bytes -= sum(len(entry.data) + OVERHEAD for entry in batch)
            self._unwritten_bytes -= sum(len(message.body) for message in messages)
            self._trim()
            self._end_waits()
            if self._stored_first:
                self._wake()

    def _end_waits(self) -> None:
        """End the waits for a stored batch; those that begin now are for the next one."""
        self._batch_stored.set()
        self._batch_stored = asyncio.Event()

    async def _store_batch(self, batch: list[Entry], messages: Sequence[MessageRow]) -> None:
        """Store until it succeeds: the readers have everything from memory meanwhile, and `wait_for_capacity` bounds that."""
        row = EventRow(self.log_id, batch[0].seq, batch[-1].seq, b"\n".join(entry.data for entry in batch))
        while True:
            try:
                return await self._store.events.append(row, messages)
            except StoreAbandoned:
                raise
            except Exception:
                if self._closed:
                    return log.exception("the events of %s cannot be stored, and the log is closed", self.log_id)
                log.exception("the events of %s cannot be stored; trying again in %g s", self.log_id, RETRY)
                await asyncio.sleep(RETRY)

    def _messages_through(self, seq: int) -> list[MessageRow]:
        found = []
        while self._unwritten_messages and (self._unwritten_messages[0].seq or 0) <= seq:
            found.append(self._unwritten_messages.popleft())
        return found

    def _next_batch(self) -> list[Entry]:
        size = 0
        for n, entry in enumerate(self._unwritten):
            size += len(entry.data)
            if size > ROW_BYTES and n:
                batch, self._unwritten = self._unwritten[:n], self._unwritten[n:]
                return batch
        batch, self._unwritten = self._unwritten, []
        return batch

    def _trim(self) -> None:
        while self._kept > KEPT_BYTES and self._recent and self._recent[0].seq <= self._stored:
            self._kept -= len(self._recent.popleft().data) + OVERHEAD

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
