"""A store whose writes fail on request, as those of SQLite do with a full disk or a locked database.

async with run_faulty_gateway(gateway_config(tmp_path)) as (portico, faults):
    fault = faults.fail("messages.append", nth=2, times=3)
    ...
    await fault.raised()
    faults.clear()
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Self, TypeVar

import psycopg
import pytest

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.app import Gateway
from gateway.store import Store
from gateway.store.database import Database
from gateway.store.sql import Connection, Dialect
from gateway.store.transactions import RequiredLease
from tests.support.daemon import RunningGateway, run_gateway

Result = TypeVar("Result")

DISK_FULL = "database or disk is full"
LOCKED = "database is locked"
WRITES = (
    "audit.append",
    "audit.delete_before",
    "compactions.set",
    "credentials.add_code",
    "credentials.add_key",
    "credentials.add_sign_in",
    "credentials.end_sign_in",
    "credentials.record_uses",
    "credentials.remove_key",
    "credentials.use_code",
    "events.append",
    "idempotency_keys.delete_before",
    "messages.append",
    "processes.ended",
    "processes.started",
    "queued_messages.add",
    "queued_messages.remove",
    "queued_messages.reorder",
    "queued_messages.update",
    "release_space",
    "responses.add",
    "responses.add_conversation",
    "responses.delete",
    "responses.delete_conversation",
    "responses.set_over",
    "responses.update_conversation",
    "runs.delete_executions",
    "runs.discard_execution",
    "runs.end",
    "runs.resume",
    "runs.start",
    "runs.stop",
    "session_metadata.update",
    "sessions.create",
    "sessions.delete",
    "sessions.delete_part",
    "sessions.update",
    "touch",
    "worktrees.add",
    "worktrees.remove",
    "worktrees.update",
)
"""The names of all writes of a store: repository and method."""


@dataclass
class Fault:
    """One request for failures. `calls` counts the writes that it matches, `failures` those that it fails."""

    pattern: str
    nth: int
    times: int | None
    seconds: float | None
    delay: float
    text: str
    committed: bool
    calls: int = 0
    failures: int = 0
    _until: float | None = None
    _raised: asyncio.Event = field(default_factory=asyncio.Event)

    async def raised(self, seconds: float = 30.0) -> None:
        """Wait until a write is to fail. Raises TimeoutError after `seconds`."""
        await asyncio.wait_for(self._raised.wait(), seconds)

    def fails(self, operation: str) -> bool:
        """Count a write, and return whether it fails."""
        if not fnmatchcase(operation, self.pattern):
            return False
        self.calls += 1
        if self.calls < self.nth or (self.times is not None and self.failures >= self.times):
            return False
        if self.seconds is not None:
            self._until = self._until or time.monotonic() + self.seconds
            if time.monotonic() >= self._until:
                return False
        self.failures += 1
        self._raised.set()
        return True

    def error(self, dialect: Dialect) -> sqlite3.Error | psycopg.Error:
        """Return the error of a failed write, as a driver raises it. Only its text says something of a lock or a disk."""
        return sqlite3.OperationalError(self.text) if dialect == "sqlite" else psycopg.errors.IoError(self.text)


class StoreFaults:
    """The failures of one store. `operations` counts the writes by their names in WRITES, failed ones included."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self._faults: list[Fault] = []

    def fail(
        self,
        pattern: str = "*",
        *,
        nth: int = 1,
        times: int | None = None,
        seconds: float | None = None,
        delay: float = 0.0,
        text: str = DISK_FULL,
        committed: bool = False,
    ) -> Fault:
        """Fail the `nth` write from now whose name in WRITES matches the pattern (`fnmatch`), and those after it.

        They fail `times` times, for `seconds` from the first failure, or until `clear`. `delay`: each occupies the writer thread
        for so many seconds first, as the busy timeout of a locked database does. `committed`: the write is done before it raises.
        """
        assert any(fnmatchcase(name, pattern) for name in WRITES), f"no write is named {pattern!r}"
        fault = Fault(pattern, nth, times, seconds, delay, text, committed)
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Let every write succeed again."""
        self._faults.clear()

    def wrap(self, operation: str, transaction: Callable[[Connection], Result]) -> Callable[[Connection], Result]:
        """Return the transaction of a write, or one that raises the error of the first fault that fails it."""
        self.operations[operation] += 1
        failing = [fault for fault in self._faults if fault.fails(operation)]
        if not failing:
            return transaction
        fault = failing[0]

        def fail(connection: Connection) -> Result:
            if fault.delay:
                time.sleep(fault.delay)
            if fault.committed:
                transaction(connection)
                connection.execute("COMMIT")
            raise fault.error(connection.dialect)

        return fail


class _FaultyDatabase(Database):
    """A database that fails writes in its writer thread."""

    faults: StoreFaults
    names: Mapping[str, str]

    async def write(self, transaction: Callable[[Connection], Result], required: RequiredLease | None = None) -> Result:
        repository, method, *_ = (*transaction.__qualname__.split("."), "")
        # Not set while the tables are created. The parts of a deletion are of no repository.
        if "faults" in self.__dict__ and repository in self.names:
            transaction = self.faults.wrap(f"{self.names[repository]}{method}", transaction)
        return await super().write(transaction, required)


class FaultyStore(Store):
    """A store with `faults`."""

    faults: StoreFaults

    @classmethod
    async def open(cls, url: str, *arguments: Any, **options: Any) -> Self:
        database = await _FaultyDatabase.open(url, *arguments, **options)
        store = cls(database)
        database.names = {type(found).__name__: f"{name}." for name, found in vars(store).items()} | {"Database": ""}
        store.faults = database.faults = StoreFaults()
        return store

    open_alone = open


@asynccontextmanager
async def faulty_stores() -> AsyncIterator[None]:
    """Let each gateway that is opened inside have a `FaultyStore`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.app.Store", FaultyStore)
        yield


def faults_of(gateway: Gateway) -> StoreFaults:
    """Return the faults of a gateway that was opened inside `faulty_stores`."""
    assert isinstance(gateway.store, FaultyStore)
    return gateway.store.faults


@asynccontextmanager
async def run_faulty_gateway(
    config: Mapping[str, Any], clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[tuple[RunningGateway, StoreFaults]]:
    """Run a gateway in this loop, as `run_gateway` does, with a store whose writes fail on request."""
    async with faulty_stores(), run_gateway(config, clock) as running:
        yield running, faults_of(running.gateway)
