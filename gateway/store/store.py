"""Store: the database and what can be asked of it, one repository for each subject."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self, cast

from gateway.store.audit import AuditRepository
from gateway.store.compactions import CompactionRepository
from gateway.store.credentials import CredentialRepository
from gateway.store.database import SILENT, Database
from gateway.store.events import EventRepository
from gateway.store.failures import FailureRepository
from gateway.store.fencing import CreatingDatabase, Fence, FencedDatabase
from gateway.store.idempotency_keys import IdempotencyKeyRepository
from gateway.store.leases import LeaseRepository
from gateway.store.messages import MessageRepository
from gateway.store.nodes import NodeRepository
from gateway.store.processes import ProcessRepository
from gateway.store.queued_messages import QueuedMessageRepository
from gateway.store.responses import ResponseRepository
from gateway.store.runs import RunRepository
from gateway.store.search import SearchRepository
from gateway.store.session_metadata import SessionMetadataRepository
from gateway.store.sessions import SessionRepository
from gateway.store.shared_repositories import SharedRepositories
from gateway.store.times import STORE_TIMES, StoreTimes
from gateway.store.worktrees import WorktreeRepository


class Store:
    """Open with `await Store.open(url)`. Each method of a repository is one transaction, on disk when the method returns.

    A write is completed also when its caller is cancelled; writes are executed in the order of the calls.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.sessions = SessionRepository(database)
        self.session_metadata = SessionMetadataRepository(database)
        self.messages = MessageRepository(database)
        self.queued_messages = QueuedMessageRepository(database)
        self.compactions = CompactionRepository(database)
        self.runs = RunRepository(database)
        self.failures = FailureRepository(database)
        self.events = EventRepository(database)
        self.idempotency_keys = IdempotencyKeyRepository(database)
        self.responses = ResponseRepository(database)
        self.search = SearchRepository(database)
        self.audit = AuditRepository(database)
        self.processes = ProcessRepository(database)
        self.worktrees = WorktreeRepository(database)
        self.credentials = CredentialRepository(database)
        # Of a cluster.
        self.nodes = NodeRepository(database)
        self.leases = LeaseRepository(database)
        self.shared = SharedRepositories(database)

    @classmethod
    async def open(cls, url: str, in_use: Sequence[Path] = (), times: StoreTimes = STORE_TIMES) -> Self:
        """Opens the database of a URL of the configuration.

        Raises ConfigError if it is of another version, with nothing in it changed, if it cannot be used at all, or if it is empty
        although it was used before: `in_use` are files and folders that are there only if it was.
        """
        return cls(await Database.open(url, in_use, times))

    @classmethod
    async def open_alone(cls, url: str, in_use: Sequence[Path] = (), times: StoreTimes = STORE_TIMES) -> Self:
        """Opens a database as `open`, for a daemon that does not share it. Raises ConfigError if another one uses it."""
        return cls(await Database.open_alone(url, in_use, times))

    @classmethod
    async def open_as_node(
        cls, url: str, node: str | None = None, silent: float = SILENT, times: StoreTimes = STORE_TIMES
    ) -> Self:
        """Opens a database as `open`, for the node of a cluster with this id.

        Raises ConfigError if a daemon that is no node uses it, and NodeRuns if a daemon with this id runs: one that is connected,
        and has not been without a heartbeat for `silent` seconds.
        """
        return cls(await Database.open_as_node(url, node, silent, times))

    @classmethod
    async def open_unchanged(cls, url: str) -> Self:
        """Opens a database that a daemon may use, and creates nothing. Raises ConfigError if it is of another version."""
        return cls(await Database.open_unchanged(url))

    def fenced(self, fence: Fence) -> Store:
        """Returns the same repositories, whose writes raise LeaseLost and change nothing unless the lease is in force."""
        return Store(cast(Database, FencedDatabase(self._database, fence)))

    def creating(self, log_id: str, node: str, seconds: float) -> Store:
        """Returns the same repositories, for the write that creates a log: it stores the node's lease of that too."""
        return Store(cast(Database, CreatingDatabase(self._database, log_id, node, seconds)))

    @property
    def abandoned(self) -> bool:
        """Whether `abandon` was called."""
        return self._database.abandoned

    @property
    def in_doubt(self) -> bool:
        """Whether a server that does not answer knows alone which writes are stored."""
        return self._database.in_doubt

    def on_doubt(self, began: Callable[[], object]) -> None:
        """Calls `began`, in the event loop, each time that a server does not say whether writes are stored."""
        self._database.on_doubt = began

    def abandon(self) -> None:
        """Fails the writes that are waited for, and all later ones, with StoreAbandoned: the process is to exit soon."""
        self._database.abandon()

    async def close(self) -> None:
        """Waits for the writes that are queued, and closes the database."""
        await self._database.close()

    @property
    def problem(self) -> str | None:
        """What is wrong with the data since the last start; None if nothing is known."""
        return self._database.problem

    @property
    def folder(self) -> Path | None:
        """The folder of the database file; None if the database is not a file."""
        return self._database.folder

    def explained_errors(self) -> AbstractContextManager[None]:
        """Raises ConfigError, with what to do, instead of an error of the database."""
        return self._database.explained_errors()

    async def release_space(self) -> None:
        """Returns free space of an SQLite file to the file system, but for a tenth of the file, in small transactions."""
        await self._database.release_space()

    async def touch(self) -> None:
        """Writes a value that is there already. Raises what any other write would raise."""
        await self._database.touch()
