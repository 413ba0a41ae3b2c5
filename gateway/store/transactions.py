"""The threads of a database: one that writes, and commits together what is queued, and a few that read."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.errors import LeaseLost, StoreAbandoned, StoreFull, StoreUnavailable
from gateway.store.backend import Backend, Failure
from gateway.store.lease_checks import leases_in_force
from gateway.store.sql import Connection

log = logging.getLogger(__name__)

Result = TypeVar("Result")
RequiredLease = tuple[str, str, int]
"""The log, the node and the token of the lease that a write requires."""
Leases = Mapping[str, tuple[str, int]]
"""The node and the token of each log."""
Outcome = tuple[Any, BaseException | None]

GROUP_WRITES = 64
"""Writes that are committed together at most."""
ABANDONED = "the gateway is shutting down, and its store does not answer"
READERS = 3
"""Threads for reads, each with a connection of its own (about 0.2 MB with SQLite). They start when they are needed."""
READ_PAUSE = 0.2
"""Seconds before a read is repeated whose connection is lost."""
LOSSES = 2
"""Times that a transaction is executed whose connection is lost before it is stored."""
CONFLICTS = 5
"""Times that a transaction is executed which other connections are in the way of: two that wait for each other, of which the
database ends one. It has changed nothing then.
"""
_UNAVAILABLE = (Failure.LOST, Failure.LOCKED, Failure.CONFLICT, Failure.UNAVAILABLE)


class IntegrityError(Exception):
    """A row that was written is there already, or refers to one that is not there. Nothing of the write is stored."""


class _Write:
    """A queued write: a function that takes a connection, its result, and the lease without which it is not executed."""

    __slots__ = ("done", "log_id", "required", "transaction")

    def __init__(
        self,
        transaction: Callable[[Connection], Any] | None,
        done: asyncio.Future[Any],
        required: RequiredLease | None,
    ) -> None:
        self.transaction, self.done, self.required = transaction, done, required

    def execute(self, connection: Connection, leases: Leases) -> Outcome:
        """The result, or LeaseLost. Raises what the function raises."""
        if self.transaction is None:
            return None, None
        if self.required is not None and leases.get(self.required[0]) != self.required[1:]:
            return None, LeaseLost(self.required[0])
        return self.transaction(connection), None


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Writes whose transaction may be stored: their outcomes if it is, and the error if it is not."""

    writes: Sequence[_Write]
    outcomes: Sequence[Outcome]
    error: BaseException


class _OutcomeUnknown(Exception):
    """The database does not say whether an executed transaction is stored. `outcomes` are those of its writes if it is."""

    def __init__(self, outcomes: Sequence[Outcome], error: BaseException) -> None:
        self.outcomes, self.error = outcomes, error


class _CommitFailed(Exception):
    """The error of a commit, as its cause."""


class Transactions:
    """Runs functions that take a connection on threads, in transactions.

    Writes that are queued when the writer thread is free are executed in one transaction (group commit). If one of them raises,
    it is rolled back, and each is executed in a transaction of its own: a write that fails does not affect the others. Only where
    the commit fails for another reason than a full disk, or the database is locked, all of them fail.

    A write returns or raises only when it is known whether it is stored. If a server does not answer a commit and cannot be
    asked for its outcome, the writes of that transaction wait until it can. All other writes fail meanwhile.
    """

    problem: str | None = None
    """What is wrong with the data; None if nothing is known."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._explains = False
        """Whether errors are reported by the caller, at once."""
        # One writer: SQLite has one write lock, and a queue in front of it is fair, which its busy handler is not.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._readers = (
            self._writer if backend.single_connection else ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        )
        self._queue: deque[_Write] = deque()
        self._queue_lock = threading.Lock()
        self._draining = False
        self._doubt: _Doubt | None = None
        self.on_doubt: Callable[[], object] = lambda: None
        """Called in the event loop when writes are in doubt."""
        self._waiting: set[asyncio.Future[Any]] = set()
        self.abandoned = False
        """Whether `abandon` was called: a thread may still be blocked by the database."""

    async def write(
        self,
        transaction: Callable[[Connection], Result],
        required: RequiredLease | None = None,
    ) -> Result:
        """Runs a function in a transaction, after all writes that were queued before; committed when this returns.

        Cancelling the caller does not cancel the write: it is queued before the first `await`, and is completed. Raises
        StoreUnavailable where the database cannot write now, as with a lock of another process, StoreFull with a full disk,
        IntegrityError, and LeaseLost, with nothing changed, where the `required` lease is not in force.
        """
        if self.abandoned:
            raise StoreAbandoned(ABANDONED)
        try:
            result: Result = await self._queued(transaction, required)
            return result
        except Exception as error:
            failure = self._backend.failure(error)
            if failure is Failure.INTEGRITY:
                raise IntegrityError(str(error)) from error
            if failure is Failure.FULL:
                raise StoreFull(f"the store cannot be written: {error}") from error
            if failure in _UNAVAILABLE:
                raise StoreUnavailable(f"the store cannot be written: {error}") from error
            raise

    async def read(self, query: Callable[[Connection], Result]) -> Result:
        """Runs a function that only reads. It sees every write that has returned. All rows must be fetched within it.

        Raises StoreUnavailable if the server of the database cannot be reached for `StoreTimes.read`.
        """
        loop, deadline = asyncio.get_running_loop(), 0.0
        while True:
            try:
                return await loop.run_in_executor(self._readers, self._read, query)
            except Exception as error:
                if self._backend.failure(error) is not Failure.LOST:
                    raise
                deadline = deadline or loop.time() + self._backend.times.read
                if self._explains or self.abandoned or loop.time() > deadline:
                    raise StoreUnavailable(f"the store cannot be read: {error}") from error
            await asyncio.sleep(READ_PAUSE)

    @property
    def in_doubt(self) -> bool:
        """Whether a server that does not answer knows alone which writes are stored."""
        return self._doubt is not None

    def abandon(self) -> None:
        """Fails the writes that are waited for, and all later ones, with StoreAbandoned: the process is to exit soon.

        For a database that is locked or whose disk does not answer. A write that has begun may still be completed. Idempotent.
        """
        self.abandoned = True
        for done in self._waiting:
            if not done.done():
                done.set_exception(StoreAbandoned(ABANDONED))

    async def close(self) -> None:
        """Waits for the queued writes and closes all connections.

        After `abandon` it waits for nothing, and only stops the threads.
        """
        if not self.abandoned:
            with suppress(StoreAbandoned):
                await self._queued(None)
        if self._doubt is not None:
            # Nobody is to wait for it. The next start finds what is stored.
            self.abandon()
        if self.abandoned:
            for threads in (self._writer, self._readers):
                threads.shutdown(wait=False, cancel_futures=True)
            # The connections are closed once the threads have ended, if the process still runs then.
            threading.Thread(target=self._close, name="store-closer", daemon=True).start()
        else:
            # Not one of the event loop's default threads: file accesses may block all of them.
            closer = ThreadPoolExecutor(1, thread_name_prefix="store-closer")
            try:
                await asyncio.get_running_loop().run_in_executor(closer, self._close)
            finally:
                closer.shutdown(wait=False)

    def _close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        self._backend.close()

    async def _queued(
        self,
        transaction: Callable[[Connection], Any] | None,
        required: RequiredLease | None = None,
    ) -> Any:
        """Queue a write, and wait for its result. With None, wait for the writes that are queued."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        try:
            with self._queue_lock:
                self._queue.append(_Write(transaction, done, required))
                if not self._draining:
                    self._writer.submit(self._write_group)
                    self._draining = True
            return await done
        finally:
            self._waiting.discard(done)

    def _write_group(self) -> None:
        """Execute what is queued, in the writer thread."""
        with self._queue_lock:
            group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_WRITES))]
        self._finish(group, self._outcomes(group))
        with self._queue_lock:
            self._draining = bool(self._queue) or (self._doubt is not None and not self.abandoned)
        if self._draining:
            try:
                # Not in a loop: with a database in memory, this thread executes the reads, too.
                self._writer.submit(self._write_group)
            except RuntimeError:
                # The thread ends after this.
                self._write_group()

    def _finish(self, group: Sequence[_Write], outcomes: Sequence[Outcome | None]) -> None:
        """End the waits for the writes that have an outcome."""
        # The loop may be closed.
        with suppress(RuntimeError):
            if group:
                group[0].done.get_loop().call_soon_threadsafe(_finish, group, outcomes)

    def _outcomes(self, group: Sequence[_Write]) -> Sequence[Outcome | None]:
        """The result or the error of each write; None for one in doubt."""
        if self.abandoned:
            return [(None, StoreAbandoned(ABANDONED) if write.transaction else None) for write in group]
        try:
            self._settle()
        except Exception as error:
            return [(None, error if write.transaction else None) for write in group]
        if sum(write.transaction is not None for write in group) > 1:
            try:
                return self._executed(group)
            except BaseException as error:
                committing, cause = isinstance(error, _CommitFailed), _cause(error)
                # Each of them would wait for the lock again. A commit that failed may be stored all the same. If it is not, one
                # write may be the cause: where the disk is full, a smaller one may have space.
                locked = self._backend.failure(cause) in (Failure.LOCKED, Failure.LOST)
                if locked or (committing and not self._backend.is_rolled_back(cause)):
                    return [(None, cause)] * len(group)
        return [self._outcome(write) for write in group]

    def _outcome(self, write: _Write) -> Outcome | None:
        if write.transaction is None:
            return None, None
        if self._doubt is not None:
            return None, self._doubt.error
        try:
            return self._executed([write])[0]
        except BaseException as error:
            return None, _cause(error)

    def _executed(self, group: Sequence[_Write]) -> Sequence[Outcome | None]:
        """Execute writes in one transaction. Raises what one of them raises, and _CommitFailed."""
        try:
            with self._noticed_damage():
                return self._write(group)
        except _OutcomeUnknown as unknown:
            return self._set_doubt(group, unknown.outcomes, unknown.error)

    def _write(self, group: Sequence[_Write]) -> list[Outcome]:
        """Execute writes in one transaction.

        It is executed again if the connection was lost and it is not stored, and if others were in the way: LOSSES and CONFLICTS
        times at most. Raises _OutcomeUnknown if the database does not say whether it is stored.
        """
        conflicts = losses = 0
        while True:
            outcomes: list[Outcome] | None = None
            try:
                with self._backend.transaction() as connection:
                    leases = _required_leases(connection, group)
                    outcomes = [write.execute(connection, leases) for write in group]
                return outcomes
            except BaseException as error:
                failure = None if self.abandoned else self._backend.failure(error)
                # Each time: a commit whose outcome is not asked for would be taken for a later one.
                if failure is Failure.LOST and outcomes is not None and self._was_committed(outcomes, error):
                    return outcomes
                conflicts, losses = conflicts + (failure is Failure.CONFLICT), losses + (failure is Failure.LOST)
                if failure not in (Failure.CONFLICT, Failure.LOST) or conflicts == CONFLICTS or losses == LOSSES:
                    if outcomes is None:
                        raise
                    raise _CommitFailed from error
            if failure is Failure.CONFLICT:
                time.sleep(self._backend.times.conflict_pause * 2**conflicts * random.random())

    def _was_committed(self, outcomes: Sequence[Outcome], error: BaseException) -> bool:
        try:
            return self._backend.was_committed()
        except Exception as unanswered:
            raise _OutcomeUnknown(outcomes, error) from unanswered

    def _set_doubt(self, writes: Sequence[_Write], outcomes: Sequence[Outcome], error: BaseException) -> list[None]:
        log.error("the store does not say whether writes are stored, and is asked until it does: %s", error)
        self._doubt = _Doubt(writes, outcomes, error)
        # The loop may be closed.
        with suppress(RuntimeError):
            writes[0].done.get_loop().call_soon_threadsafe(self.on_doubt)
        return [None] * len(writes)

    def _settle(self) -> None:
        """End the writes in doubt if the database says whether they are stored. Raises its error if it does not answer."""
        if (doubt := self._doubt) is None:
            return
        stored = self._backend.was_committed()
        self._doubt = None
        log.warning("the store answers again: the writes that were in doubt are %s", "stored" if stored else "not stored")
        self._finish(doubt.writes, doubt.outcomes if stored else [(None, doubt.error)] * len(doubt.writes))

    def _read(self, query: Callable[[Connection], Result]) -> Result:
        with self._noticed_damage(), self._backend.reading() as connection:
            return query(connection)

    @contextmanager
    def _noticed_damage(self) -> Iterator[None]:
        """Set `problem` where an error shows that the database is damaged."""
        try:
            yield
        except Exception as error:
            cause = _cause(error)
            if self.problem is None and self._backend.failure(cause) is Failure.DAMAGED:
                self.problem = "the database is damaged: stop the gateway and restore a backup; the log has details"
                if not self._explains:
                    log.error("%s", self._backend.explain(cause))
            raise


def _cause(error: BaseException) -> BaseException:
    return (error.__cause__ or error) if isinstance(error, _CommitFailed) else error


def _required_leases(connection: Connection, group: Sequence[_Write]) -> Leases:
    """The leases in force of the logs that a group of writes requires."""
    log_ids = [write.required[0] for write in group if write.required is not None]
    return leases_in_force(connection, log_ids) if log_ids else {}


def _finish(group: Sequence[_Write], outcomes: Sequence[Outcome | None]) -> None:
    for write, outcome in zip(group, outcomes, strict=True):
        # Their callers may have been cancelled.
        if outcome is None or write.done.done():
            continue
        result, error = outcome
        if error is None:
            write.done.set_result(result)
        elif isinstance(error, StopIteration):
            # A future does not accept it, and the writes after this one would not be completed.
            write.done.set_exception(RuntimeError("a write has raised StopIteration"))
        else:
            write.done.set_exception(error)
