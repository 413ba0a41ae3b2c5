"""Fencing: writes of a log that succeed only while this process has the log's lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from gateway.errors import LeaseLost, LogDeleted
from gateway.store.database import Database
from gateway.store.leases import insert_lease
from gateway.store.sql import Connection

Result = TypeVar("Result")


class Fence(Protocol):
    """The lease of a log, as its holder has it. `held` is whether it was neither released nor lost, as far as is known here,
    `deleted` whether it was lost because this process has deleted the log."""

    @property
    def log_id(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def token(self) -> int: ...

    @property
    def held(self) -> bool: ...

    @property
    def deleted(self) -> bool: ...

    async def hold(self) -> None:
        """Acquire the lease again after a release. Raises LeaseLost where another node may have had it meanwhile."""

    def lose(self) -> None:
        """A write has found that the lease is another's."""


class Lease(Fence, Protocol):
    """The right of this node of a cluster to serve a session or a task (gateway.cluster.leases.HeldLease)."""

    on_lost: Callable[[], None] | None

    @property
    def lost(self) -> bool: ...

    @property
    def is_fresh(self) -> bool:
        """Whether it was renewed in time, so that no other node can have it."""

    async def confirm(self) -> None:
        """Renew it if it has expired, before anything is done that only its holder may do. Raises LeaseLost, StoreUnavailable."""

    async def release(self) -> None:
        """Release it: any node may acquire it."""

    def end_with_log(self) -> None:
        """Its log was deleted, with the lease, by a write of this process."""


class FencedDatabase:
    """A view of a database whose writes check in their transaction that the lease still has its node and token.

    The check is one statement for all writes that are committed together. A write without the lease changes nothing, raises
    LeaseLost and does not affect the others.
    """

    def __init__(self, database: Database, fence: Fence) -> None:
        self._database, self._fence = database, fence
        self.read = database.read

    @property
    def in_doubt(self) -> bool:
        """Whether a server that does not answer knows alone which writes are stored."""
        return self._database.in_doubt

    async def write(self, transaction: Callable[[Connection], Result]) -> Result:
        """As Database.write. After a release the lease is acquired again first. Raises LeaseLost, LogDeleted."""
        fence = self._fence
        if not fence.held:
            await fence.hold()
        try:
            return await self._database.write(transaction, (fence.log_id, fence.node, fence.token))
        except LeaseLost as error:
            fence.lose()
            if fence.deleted:
                raise LogDeleted(fence.log_id) from error
            raise


class CreatingDatabase:
    """A view of a database whose writes create a log: its lease is stored in the same transaction."""

    def __init__(self, database: Database, log_id: str, node: str, seconds: float) -> None:
        self._database, self._lease = database, (log_id, node, seconds)
        self.read = database.read

    async def write(self, transaction: Callable[[Connection], Result]) -> Result:
        """As Database.write. The node has the lease, with the token 1, when it returns."""

        def with_lease(connection: Connection) -> Result:
            insert_lease(connection, *self._lease)
            return transaction(connection)

        return await self._database.write(with_lease)
