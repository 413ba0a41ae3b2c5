"""The log of a session or a task: numbered events, followed by any number of readers from any number.

The newest events are held in memory. All events are written to the store in the background, each with the messages that it
completes. A reader that is further back than the memory reads from the store. Nothing is ever dropped: when too much is
unwritten, the writer of events waits, and with it the agent's pipe.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby, islice
from typing import Any, NamedTuple, cast

from drivers.contract.events import DELTAS, AgentToken, Awaiting, Event, SessionEnd, Thinking, Usage, encode_deltas
from drivers.contract.messages import Message
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.errors import LeaseLost, NotFound, StoreAbandoned, StoreUnavailable
from gateway.events.log_entries import LogEvent, decode
from gateway.events.messages import message_row
from gateway.store import EventRow, FailureRecord, IntegrityError, KeyRecord, MessageRow, Store
from gateway.store.fencing import Fence

log = logging.getLogger(__name__)

OVERHEAD, ENCODED_OVERHEAD = 600, 60
"""Bytes that an event takes in memory besides its JSON, and one that is kept as JSON only, about; counted in the limits below."""
KEPT_BYTES = 2 * 1024 * 1024
"""How many bytes of the newest events, as JSON, stay in memory once they are stored."""
UNWRITTEN_BYTES = 16 * 1024 * 1024
"""How many bytes may wait to be stored before the agent is not read any more."""
ROW_BYTES = 1024 * 1024
"""About how much one stored row holds; a larger single event has a row of its own."""
RETRY = 1.0
"""Seconds between tries of a store that fails."""
STORE_TIMEOUT = 30.0
"""Seconds without a successful write after which a run that works is ended: more than two timeouts of a locked database."""
REQUEST_TIMEOUT = 5.0
"""The same for a new turn, whose request is refused then."""
STOP_TIMEOUT = 1.0
"""The same for a run that is being stopped."""
READ_EVENTS = 2048
"""The most events that one read returns, so that many readers take turns."""


class Entry(NamedTuple):
    """A numbered event with its JSON."""

    seq: int
    event: LogEvent
    data: bytes


EndOfTurn = Callable[..., Awaitable[None]]
"""Stores the last row of a turn and the state of its run."""


@dataclass(frozen=True)
class LogLimits:
    """How many bytes of a log are kept in memory, unwritten while the agent goes on, and in one row of the store."""

    kept: int = KEPT_BYTES
    unwritten: int = UNWRITTEN_BYTES
    row: int = ROW_BYTES


class EventLog:
    """`append`, `reserved`, `end_turn` and `wait_for_capacity` are for its one writer, `read` is for all readers.

    `last` is the number of the last event that is stored. With `stored_first`, readers get an event once it is stored; what
    cannot be stored they get when the log is closed, or its store is abandoned. The same holds for events after an `awaiting`:
    after a kill, a run that waits goes on with the number after the last stored one. `all_written` is called when `unwritten`
    has become 0. `lease` is the right of this node of a cluster to write the log: without it readers get LeaseLost.
    """

    def __init__(
        self,
        log_id: str,
        store: Store,
        last: int = 0,
        *,
        stored_first: bool = False,
        all_written: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM_CLOCK,
        lease: Fence | None = None,
        limits: LogLimits | None = None,
    ) -> None:
        self.clock, self._lease = clock, lease
        self._limits = limits or LogLimits(KEPT_BYTES, UNWRITTEN_BYTES, ROW_BYTES)
        self.log_id, self._stored_first, self._all_written = log_id, stored_first, all_written
        self._store = store
        self._recent: deque[Entry] = deque()
        # Of what comes before `_recent` only the JSON is kept: each event has three objects that every garbage collection visits.
        self._encoded: deque[bytes] = deque()
        self._first_encoded = 0
        self._kept = 0
        self._unwritten: list[Entry] = []
        self._unwritten_messages: deque[MessageRow] = deque()
        self._unwritten_keys: deque[KeyRecord] = deque()
        self._unwritten_bytes = 0
        self._stored = self.last = last
        self._waiters: set[asyncio.Future[None]] = set()
        self._batch_stored: asyncio.Future[None] | None = None
        self._reservation, self._writing = asyncio.Lock(), asyncio.Lock()
        self._held: list[tuple[list[LogEvent], Sequence[tuple[int, Message]], KeyRecord | None]] = []
        self._ends: dict[int, EndOfTurn] = {}
        self._writer: asyncio.Task[None] | None = None
        self._awaiting: int | None = None
        self._closed = self._deleted = self._stalled = self._lost = False

    def append(
        self, events: Iterable[LogEvent], messages: Sequence[tuple[int, Message]] = (), key: KeyRecord | None = None
    ) -> None:
        """Number the events, publish them to the readers, and have them written in the background.

        Each message, with the index of the event that completes it, is stored in one transaction with that event: the
        stored history is always what the stored events complete. So is the `key` of the request that the first event is from; its
        number is set here. Events that come while another has the next number reserved follow it.
        """
        if self._lost:
            return
        if self._reservation.locked():
            self._held.append((list(events), messages, key))
            return
        self._add_messages(messages)
        if key is not None:
            self._unwritten_keys.append(replace(key, first_seq=self.last + 1))
        events = list(events)
        entries = [*map(_entry, zip(count(self.last + 1), events, _encode(events)))]
        size = sum([len(entry.data) for entry in entries]) + OVERHEAD * len(entries)
        self._recent += entries
        self._kept += size
        self.last += len(entries)
        self._unwritten += entries
        self._unwritten_bytes += size
        if self._writer is None and entries:
            self._writer = asyncio.create_task(self._write())
        if not self._stored_first:
            self._wake()

    def _add_messages(self, messages: Iterable[tuple[int, Message]]) -> None:
        for index, message in messages:
            row = message_row(message, self.last + 1 + index)
            self._unwritten_messages.append(row)
            self._unwritten_bytes += len(row.body)

    def _add(self, entry: Entry) -> None:
        if self._lost:
            return
        self._unwritten.append(entry)
        self._unwritten_bytes += len(entry.data) + OVERHEAD
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    @asynccontextmanager
    async def reserved(self, *events: LogEvent) -> AsyncIterator[list[Entry]]:
        """Reserve the next numbers for events that the caller stores in the block, together with what belongs to them.

        All before them is on disk, so that a reader who gets these finds the same after a kill. Readers get them after the
        block; if the block raises, there are no such events. Raises StoreUnavailable where earlier events cannot be stored, and
        NotFound where the log was deleted: `delete_stored` and the block exclude each other.
        """
        try:
            async with self._reservation:
                await self.require_written()
                entries = [Entry(seq, event, event.encode()) for seq, event in enumerate(events, self.last + 1)]
                async with self._writing:
                    if self._deleted:
                        raise NotFound(f"session {self.log_id!r} was deleted")
                    yield entries
                self._awaiting = None
                for entry in entries:
                    self._stored = entry.seq
                    self._publish(entry)
        finally:
            self._append_held()

    async def end_turn(
        self,
        run_id: str,
        event: Awaiting | SessionEnd,
        now: float,
        messages: Sequence[Message] = (),
        *,
        failure: FailureRecord | None = None,
        usage: Usage | None = None,
        ended: Callable[[], None],
        still: Callable[[], bool] = lambda: True,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Store the last event of a turn, the messages that it completes, and that the run waits (since `now`) or has ended.

        `failure` is why it failed, `usage` what its agent has used in the turn.

        Then, without an await in between, call `ended` and publish the event, even if the store fails for STORE_TIMEOUT, or for
        STOP_TIMEOUT once `stop` is set. The event is written as soon as the store works again. With `stored_first`, readers get
        it then. Nothing is done where `still` is false, when the number would be reserved.
        """
        try:
            async with self._reservation:
                if not still():
                    return
                entry = Entry(self.last + 1, event, event.encode())
                self._add_messages((0, message) for message in messages)
                self._ends[entry.seq] = _end_of_turn(self._store, run_id, event, now, failure, usage)
                self._add(entry)
                try:
                    if not await self._wait_stored(entry.seq, STORE_TIMEOUT, stop):
                        log.error("the end of %s is not stored yet", run_id)
                finally:
                    ended()
                    self._awaiting = entry.seq if isinstance(event, Awaiting) else None
                    self._publish(entry)
        finally:
            self._append_held()

    def _publish(self, entry: Entry) -> None:
        if not self._lost:
            self._hold(entry)
            self._wake()

    def _append_held(self) -> None:
        held, self._held = self._held, []
        for events, messages, key in held:
            self.append(events, messages, key)

    def drop_held(self, kept: Collection[type[Event]]) -> None:
        """Drop the events that wait until a number is not reserved any more, but those of these types."""
        self._held = [([event for event in events if type(event) in kept], (), None) for events, _, _ in self._held]

    def row(self, entries: Sequence[Entry]) -> EventRow:
        """The row of consecutive entries."""
        return EventRow(self.log_id, entries[0].seq, entries[-1].seq, b"\n".join([entry.data for entry in entries]))

    def _hold(self, entry: Entry) -> None:
        self.last = entry.seq
        self._recent.append(entry)
        self._kept += len(entry.data) + OVERHEAD

    @property
    def is_reserved(self) -> bool:
        """Whether an event is being stored before readers get it."""
        return self._reservation.locked()

    @property
    def stored(self) -> int:
        """The number of the last event that is on disk."""
        return self._stored

    def is_stored(self, seq: int) -> bool:
        """Whether the event of this number is on disk."""
        return self._stored >= seq

    @property
    def unwritten(self) -> int:
        """Bytes that wait to be stored, about."""
        return self._unwritten_bytes

    async def wait_for_capacity(self, stop: asyncio.Event | None = None) -> None:
        """Wait until less than `LogLimits.unwritten` bytes wait for the store, or `stop` is set: back-pressure on the agent."""
        while self._unwritten_bytes > self._limits.unwritten and self._writer is not None and not (stop and stop.is_set()):
            await self._batch_written(None, stop)

    async def written(self, timeout: float | None = None, stop: asyncio.Event | None = None) -> bool:
        """Wait until all that was appended before this call is on disk.

        Returns False where nothing was written for `timeout` seconds, by default STORE_TIMEOUT, or for STOP_TIMEOUT once `stop`
        is set.
        """
        return await self._wait_stored(self.last, STORE_TIMEOUT if timeout is None else timeout, stop)

    async def require_written(self) -> None:
        """Wait until all that was appended is on disk. Raises StoreUnavailable after REQUEST_TIMEOUT."""
        if not await self.written(REQUEST_TIMEOUT):
            raise StoreUnavailable("the store cannot be written: the previous turn is not stored yet; try again later")

    async def _wait_stored(self, seq: int, timeout: float, stop: asyncio.Event | None) -> bool:
        while self._stored < seq and self._writer is not None:
            if not await self._batch_written(timeout, stop):
                return False
        return self._stored >= seq

    async def _batch_written(self, timeout: float | None, stop: asyncio.Event | None) -> bool:
        """Wait for the end of a write, for so many seconds."""
        stopped = stop is not None and stop.is_set()
        if stopped:
            timeout = 0.0 if self._stalled else STOP_TIMEOUT
        written = self._batch_stored
        if written is None:
            written = self._batch_stored = asyncio.get_running_loop().create_future()
        stopping = asyncio.create_task(stop.wait()) if stop is not None and not stopped else None
        waits: list[asyncio.Future[Any]] = [written] if stopping is None else [written, stopping]
        try:
            done, _ = await self.clock.wait(waits, timeout, asyncio.FIRST_COMPLETED)
        finally:
            if stopping is not None:
                stopping.cancel()
        if done and not written.done():
            return await self._batch_written(timeout, stop)
        if not done:
            self._stalled = True
        return bool(done)

    @property
    def deleted(self) -> bool:
        """Whether it was deleted from the store."""
        return self._deleted

    @property
    def is_followed(self) -> bool:
        """Whether a reader waits for its next event."""
        return bool(self._waiters)

    def lose(self) -> None:
        """Another node of a cluster has the log: what is not stored is dropped, and nothing more is written.

        Readers get LeaseLost. They may have got events that are dropped: those of the other node have greater numbers.
        """
        self._lost = True
        self._unwritten, self._unwritten_bytes = [], 0
        self._unwritten_messages.clear()
        self._unwritten_keys.clear()
        self._ends.clear()
        self._held.clear()
        self._wake()

    def release_readers(self) -> None:
        """Let the readers that wait find out that the lease was released. They get LeaseLost, and their clients ask again."""
        self._wake()

    def _lease_lost(self) -> LeaseLost:
        return LeaseLost(self.log_id, "look what was done before you repeat it")

    async def delete_stored(self, delete: Callable[[], Awaitable[None]]) -> None:
        """Delete what is stored of this log with `delete`; nothing is written meanwhile, and nothing afterwards.

        Readers still get what is appended. If `delete` raises, the log is as before.
        """
        async with self._writing:
            await delete()
            self._deleted = True

    @property
    def _readable(self) -> int:
        """The number of the last event that readers get. Readers of a closed log get its end even if the end cannot be stored."""
        if self._closed or not (self._stored_first or self._awaiting is not None):
            return self.last
        # An event can be stored before it is published.
        stored = min(self._stored, self.last)
        return stored if self._stored_first or self._awaiting is None else max(stored, self._awaiting)

    async def read(self, after: int) -> list[Entry]:
        """Events after a number, in order, as many as there are (at most READ_EVENTS); waits for the first. Safe to cancel.

        Empty only once the log is closed and nothing more comes, or where the rest was deleted from the store. Raises LeaseLost
        once the lease is lost; where it was released only for what is not here: another node may store that.
        """
        if self._lost:
            raise self._lease_lost()
        while after >= self._readable:
            if self._closed:
                return []
            if self._lease is not None and not self._lease.held and not self._deleted:
                raise self._lease_lost()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
            if self._lost:
                raise self._lease_lost()
        if self._recent and self._recent[0].seq <= after + 1:
            return self._from_memory(after)
        if self._encoded and self._first_encoded <= after + 1:
            return self._from_encoded(after)
        return await self._from_store(after)

    def unwritten_key(self, key: str) -> KeyRecord | None:
        """The record of a (hashed) idempotency key that is not on disk yet. Of an event that waits for a reservation it has the
        least number that the event can get."""
        held = (replace(one, first_seq=self.last + 1) for _, _, one in self._held if one is not None)
        return next((record for record in (*self._unwritten_keys, *held) if record.key == key), None)

    def _from_memory(self, after: int) -> list[Entry]:
        newest, last = self._recent[-1].seq, self._readable
        if newest - after <= READ_EVENTS:
            # The common case: a reader that keeps up reads the last few, and a deque is quick from its ends only.
            read = [*islice(reversed(self._recent), newest - last, newest - after)]
            read.reverse()
            return read
        skip = max(after + 1 - self._recent[0].seq, 0)
        end = min(skip + READ_EVENTS, len(self._recent) - (newest - last))
        return [entry for n, entry in enumerate(self._recent) if skip <= n < end]

    def _from_encoded(self, after: int) -> list[Entry]:
        skip = max(after + 1 - self._first_encoded, 0)
        first = self._first_encoded + skip
        encoded = islice(self._encoded, skip, skip + READ_EVENTS)
        found = [Entry(seq, decode(data), data) for seq, data in enumerate(encoded, first)]
        if self._recent and len(found) < READ_EVENTS:
            found += self._from_memory(found[-1].seq)[: READ_EVENTS - len(found)]
        return found

    async def _from_store(self, after: int) -> list[Entry]:
        rows = await self._store.events.read(self.log_id, after)
        found = [
            Entry(seq, decode(line), line)
            for first, body in rows
            for seq, line in enumerate(body.split(b"\n"), first)
            if seq > after
        ]
        if found:
            return found
        # The log was deleted meanwhile.
        if self._encoded:
            return self._from_encoded(after)
        return self._from_memory(after) if self._recent else []

    def close(self) -> None:
        """Nothing more comes: readers that have everything get an empty list."""
        self._closed = True
        self._wake()

    async def _write(self) -> None:
        try:
            await self._write_all()
            self._all_written()
        except StoreAbandoned:
            if not self._lost:
                # The readers get the rest from memory; the next start of the daemon reports it as a gap.
                self._stored_first, self._awaiting = False, None
                self._wake()
        finally:
            self._writer = None
            self._end_waits()

    async def _write_all(self) -> None:
        while self._unwritten:
            batch = self._next_batch()
            messages, keys = self._messages_through(batch[-1].seq), self._keys_through(batch[-1].seq)
            await self._store_batch(batch, messages, keys)
            if self._lost:
                return
            # Not the events of this batch: with `stored_first` readers get them now.
            self._drop_objects(self._stored)
            self._stored = batch[-1].seq
            self._unwritten_bytes -= sum([len(entry.data) for entry in batch]) + OVERHEAD * len(batch)
            self._unwritten_bytes -= sum(len(message.body) for message in messages)
            for _ in keys:
                self._unwritten_keys.popleft()
            self._trim()
            self._stalled = False
            self._end_waits()
            if self._stored_first or self._awaiting is not None:
                self._wake()

    def _end_waits(self) -> None:
        """End the waits for a stored batch; those that begin now are for the next one."""
        written, self._batch_stored = self._batch_stored, None
        if written is not None:
            written.set_result(None)

    async def _store_batch(self, batch: list[Entry], messages: Sequence[MessageRow], keys: Sequence[KeyRecord]) -> None:
        """Store until it succeeds: everything is in memory meanwhile, and `wait_for_capacity` bounds that."""
        row = self.row(batch)
        end = self._ends.pop(row.last, None)
        failed = False
        while True:
            try:
                async with self._writing:
                    if self._deleted:
                        return
                    store = self._store.events.append if end is None else end
                    await store(row, messages=messages, keys=keys)
            except StoreAbandoned:
                raise
            except Exception as error:
                if self._closed:
                    return log.exception("the events of %s cannot be stored, and the log is closed", self.log_id)
                if failed and isinstance(error, IntegrityError) and await self._is_stored(row):
                    return
                log.error(
                    "the events of %s cannot be stored; trying again in %g s: %s",
                    self.log_id,
                    RETRY,
                    error,
                    exc_info=not failed,
                )
                failed = True
                await self.clock.sleep(RETRY)
            else:
                return

    async def _is_stored(self, row: EventRow) -> bool:
        """Whether a write that failed has stored this row all the same, as a disk may that fails in a commit."""
        try:
            return await self._store.events.read(self.log_id, row.first - 1, 1) == [(row.first, row.body)]
        except Exception:
            return False

    def _messages_through(self, seq: int) -> list[MessageRow]:
        found = []
        while self._unwritten_messages and (self._unwritten_messages[0].seq or 0) <= seq:
            found.append(self._unwritten_messages.popleft())
        return found

    def _keys_through(self, seq: int) -> list[KeyRecord]:
        """The keys of the events up to a number. They stay findable until these are stored."""
        return [record for record in self._unwritten_keys if record.first_seq <= seq]

    def _next_batch(self) -> list[Entry]:
        size = self._unwritten_bytes - OVERHEAD * len(self._unwritten)
        if size <= self._limits.row and self._ends.keys() <= {self._unwritten[-1].seq}:
            batch, self._unwritten = self._unwritten, []
            return batch
        size = 0
        for n, entry in enumerate(self._unwritten):
            size += len(entry.data)
            if n and (size > self._limits.row or self._unwritten[n - 1].seq in self._ends):
                batch, self._unwritten = self._unwritten[:n], self._unwritten[n:]
                return batch
        batch, self._unwritten = self._unwritten, []
        return batch

    def _drop_objects(self, last: int) -> None:
        """Keep only the JSON of the events up to a number, which are stored."""
        recent = self._recent
        if not recent or recent[0].seq > last:
            return
        if not self._encoded:
            self._first_encoded = recent[0].seq
        # Their numbers follow each other.
        stored = min(last - recent[0].seq + 1, len(recent))
        self._encoded += [entry.data for entry in islice(recent, stored)]
        for _ in range(stored):
            recent.popleft()
        self._kept -= stored * (OVERHEAD - ENCODED_OVERHEAD)

    def _trim(self) -> None:
        kept, encoded, recent, stored = self._kept, self._encoded, self._recent, self._stored
        before = len(encoded)
        while kept > self._limits.kept and encoded:
            kept -= len(encoded.popleft()) + ENCODED_OVERHEAD
        self._first_encoded += before - len(encoded)
        while kept > self._limits.kept and recent and recent[0].seq <= stored:
            kept -= len(recent.popleft().data) + OVERHEAD
        self._kept = kept

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


_entry: Callable[[tuple[int, LogEvent, bytes]], Entry] = partial(tuple.__new__, Entry)
"""An entry of a tuple, without the call of a Python function for each event that the constructor is."""


def _encode(events: Sequence[LogEvent]) -> list[bytes]:
    encoded: list[bytes] = []
    for kind, group in groupby(events, type):
        if kind in DELTAS:
            encoded += encode_deltas(cast("list[AgentToken | Thinking]", list(group)))
        else:
            encoded += [event.encode() for event in group]
    return encoded


def _end_of_turn(
    store: Store,
    run_id: str,
    event: Awaiting | SessionEnd,
    now: float,
    failure: FailureRecord | None,
    usage: Usage | None,
) -> EndOfTurn:
    if isinstance(event, SessionEnd):
        kept = event.prompt_kept
        return partial(store.runs.stop, run_id, "ended", event.stop_reason, failure=failure, usage=usage, kept=kept)
    return partial(store.runs.stop, run_id, "waiting", None, waiting_since=now, usage=usage)
