"""MessageQueue: the messages of a session that wait for their turns, in order.

A *stored* message survives its client and the daemon. The others are tied to the connection of their client: they are in memory
only, and leave the queue with their client. Of the states of a session it knows whether a turn may begin.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from drivers.contract.client_services import ClientServices
from drivers.contract.messages import MESSAGE, UserMessage
from drivers.runtime.clock import Timer
from gateway.errors import BadRequest, Conflict, GatewayError, NotFound, ShuttingDown, StoreAbandoned, StoreUnavailable, TooMany
from gateway.events.turn_reader import Turn
from gateway.runs.cancellation import completed
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.shared_services import SharedServices
from gateway.sessions.settings import SessionSettings
from gateway.store import QueuedRow, SettingsRecord

log = logging.getLogger(__name__)

MAX_QUEUED = 16
"""The most messages that may wait in one session."""
CANCELLED = "cancelled"
"""Why a queue is stopped whose run was cancelled."""
RETRY = 5.0
"""Seconds after which a message without a waiting client is tried again: all slots were taken, or the store cannot be written."""
STOP_TIMEOUT = 1.0
"""Seconds that a cancel waits until it is stored that the queue is stopped."""


class MessageRemoved(Conflict):
    """The message for which a client waited was removed from the queue."""


@dataclass(eq=False, kw_only=True)
class QueuedMessage:
    """A message in the queue. `changes` are the settings that its turn changes; None if it changes none.

    The message of a connection has its `settings` instead, which give the new settings from those in force when the turn begins,
    and `disconnected`. `services` are what the client does for the agent, and `began` is called with the turn before a reader of
    the log can see its first event. `begins`: its turn is being started, so that the message cannot be changed any more.
    """

    message: UserMessage
    created_at: float
    stored: bool
    changes: SessionSettings | None = None
    settings: Callable[[SessionSettings], SessionSettings] | None = None
    key: IdempotencyKey | None = None
    services: ClientServices | None = None
    disconnected: Callable[[], Awaitable[None]] | None = None
    began: Callable[[Turn], None] | None = None
    id: str = ""
    begins: bool = False
    waiters: set[asyncio.Future[Turn]] = field(default_factory=set)
    context: Context = field(default_factory=copy_context)
    """For the log lines of its turn: those of the request that has sent it."""

    def __post_init__(self) -> None:
        if not self.id:
            self.id = id_of_key(self.key.key) if self.key is not None else f"msg_{uuid.uuid4().hex}"

    def new_settings(self, current: SessionSettings) -> SessionSettings:
        """Returns the settings of its turn from those in force."""
        if self.settings is not None:
            return self.settings(current)
        return current if self.changes is None else current.with_changes(self.changes)


class MessageQueue:
    """Begins the first message whenever the session is free: one at a time, in the background.

    `lock` is that of the session. `free` is whether a turn may begin; call `advance` when that may have changed. `begin` starts
    the turn of a message under the lock, and calls `began` in the transaction's turn; if it raises before that, nothing has
    changed. `changed` is called when the messages are others, or the queue is stopped or goes on.
    """

    def __init__(
        self,
        session_id: str,
        shared: SharedServices,
        lock: asyncio.Lock,
        *,
        free: Callable[[], bool],
        begin: Callable[[QueuedMessage], Awaitable[Turn]],
        changed: Callable[[], None],
    ) -> None:
        self._session_id, self._shared, self._store = session_id, shared, shared.store
        self._lock, self._free, self._begin, self._changed = lock, free, begin, changed
        self._messages: list[QueuedMessage] = []
        self.stopped: str | None = None
        """Why stored messages do not begin until a client says to go on; None if they do."""
        self._closed: GatewayError | None = None
        self._changing = asyncio.Lock()
        """Held while the messages or their order change, in the store and here, and when the next one is taken."""
        self._beginning: asyncio.Task[None] | None = None
        self._retry: Timer | None = None
        self._storing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._messages)

    @property
    def messages(self) -> Sequence[QueuedMessage]:
        """The messages in their order."""
        return tuple(self._messages)

    @property
    def empty(self) -> bool:
        return not self._messages

    @property
    def goes_on(self) -> bool:
        """Whether a message begins as soon as the session is free."""
        return self._next() is not None

    @property
    def at_rest(self) -> bool:
        """Whether the store has all of the queue, and nothing begins before somebody uses the session."""
        if self._closed is not None or not self._messages:
            return True
        in_store = all(one.stored and not one.waiters and not one.begins for one in self._messages)
        return in_store and (self.stopped is not None or not self._free())

    def find(self, key: IdempotencyKey) -> QueuedMessage | None:
        """Returns the message of a request with this idempotency key. Raises Conflict if that was another request."""
        found = next((one for one in self._messages if one.key is not None and one.key.key == key.key), None)
        if found is not None and found.key is not None and found.key.digest != key.digest:
            raise Conflict("this idempotency key belongs to another request; a new request takes a new key")
        return found

    def load(self, rows: Sequence[QueuedRow], changes: Sequence[SessionSettings | None], stopped: str | None) -> None:
        """Take over the stored messages, each with the settings that it changes. Call `advance` then."""
        self.stopped = stopped if rows else None
        for row, changed in zip(rows, changes, strict=True):
            message = MESSAGE.validate_json(row.message)
            assert isinstance(message, UserMessage)
            key = None if row.key is None or row.digest is None else IdempotencyKey(row.key, row.digest)
            self._messages.append(
                QueuedMessage(
                    id=row.id,
                    message=message,
                    created_at=row.created_at,
                    stored=True,
                    changes=changed,
                    key=key,
                    context=Context(),
                )
            )

    # -- what clients do --------------------------------------------------------------------------------------------------

    async def add(self, message: QueuedMessage) -> None:
        """Put a message behind the others. A stored one is in the store then, and a stopped queue of a free session goes on.

        Raises TooMany if the queue is full, StoreUnavailable, and the error that the queue was closed with.
        """
        await completed(self._add(message))

    async def _add(self, message: QueuedMessage) -> None:
        async with self._changing:
            if self._closed is not None:
                raise self._closed
            if len(self._messages) >= MAX_QUEUED:
                raise TooMany(f"{MAX_QUEUED} messages are queued for this session already; try again later")
            if message.stored:
                go_on = self.stopped is not None and self._free()
                await self._store.queued_messages.add(self._session_id, self._row(message), go_on=go_on)
                self.stopped = None if go_on else self.stopped
                if self._closed is not None:
                    raise self._closed
            self._messages.append(message)
        self._changed()
        self.advance()

    async def turn(self, message: QueuedMessage, disconnected: Callable[[], Awaitable[None]]) -> Turn:
        """Add a message, unless it is in the queue, and wait for its turn. Raises what `add` raises, and what refuses the turn.

        If the client disconnects first, raises Conflict: a stored message stays in the queue, another one leaves it.
        """
        waiter: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        message.waiters.add(waiter)
        gone = asyncio.ensure_future(disconnected())
        try:
            if message not in self._messages:
                await self.add(message)
            await asyncio.wait((waiter, gone), return_when=asyncio.FIRST_COMPLETED)
            if not waiter.done() and (message.stored or not message.begins):
                raise Conflict("the client disconnected before the turn of its message began")
            return await waiter
        except asyncio.CancelledError:
            message.waiters.discard(waiter)
            if not message.stored and message.begins and self._beginning is not None:
                # Its start is undone before its client is gone.
                self._beginning.cancel()
                await asyncio.wait([self._beginning])
            raise
        finally:
            gone.cancel()
            message.waiters.discard(waiter)
            if not message.stored and not message.begins:
                self._forget(message)

    async def edit(self, message_id: str, content: UserMessage) -> QueuedMessage:
        """Replace a message by another one, at the same place. Raises NotFound, Conflict or StoreUnavailable."""

        async def edit() -> QueuedMessage:
            async with self._changing:
                found = self._changeable(message_id)
                if not found.stored:
                    raise Conflict("this message is of a client that waits for its answer, and only that client can change it")
                await self._store.queued_messages.update(found.id, encoded(content))
                found.message = content
            self._changed()
            return found

        return await completed(edit())

    async def reorder(self, message_ids: Sequence[str]) -> None:
        """Set the order of all messages. Raises BadRequest, Conflict or StoreUnavailable."""

        async def reorder() -> None:
            async with self._changing:
                known = {one.id: one for one in self._messages}
                if len(set(message_ids)) < len(message_ids):
                    raise BadRequest("order: an id is there twice; send the id of each queued message once")
                if set(message_ids) != known.keys():
                    raise Conflict(
                        "order: these are not the messages that are queued; GET the queue, and send the id of each of them once"
                    )
                ordered = [known[message_id] for message_id in message_ids]
                if any(one.begins for one in ordered[1:]):
                    raise Conflict("the turn of the first message is being started, and its place cannot be changed any more")
                await self._store.queued_messages.reorder([one.id for one in ordered if one.stored])
                # A client may have disconnected meanwhile, with its message.
                self._messages = [one for one in ordered if one in self._messages]
            self._changed()
            self.advance()

        await completed(reorder())

    async def remove(self, message_id: str) -> None:
        """Remove a message. A client that waits for it gets MessageRemoved. Raises NotFound, Conflict or StoreUnavailable."""

        async def remove() -> None:
            async with self._changing:
                found = self._changeable(message_id)
                if found.stored:
                    await self._store.queued_messages.remove(self._session_id, found.id)
                self._forget(found)
            refuse(found, MessageRemoved("this message was removed from the queue of its session before its turn began"))
            self.advance()

        await completed(remove())

    async def go_on(self) -> None:
        """Let the messages of a stopped queue begin, and try one that was refused again at once. Raises StoreUnavailable."""

        async def go_on() -> None:
            async with self._changing:
                if self._closed is not None:
                    raise self._closed
                if self.stopped is not None:
                    await self._store.sessions.update(self._session_id, queue_stopped=None)
                    self.stopped = None
            self._end_retry()
            self._changed()
            self.advance()

        await completed(go_on())

    def _changeable(self, message_id: str) -> QueuedMessage:
        if self._closed is not None:
            raise self._closed
        found = next((one for one in self._messages if one.id == message_id), None)
        if found is None:
            raise NotFound(
                f"no message {message_id!r} is queued in this session; its turn may have begun. GET the queue for those"
            )
        if found.begins:
            raise Conflict("the turn of this message is being started, and the message cannot be changed any more")
        return found

    # -- what the session does --------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Begin the first message, if a turn may begin."""
        message = self._next()
        if message is None or self._beginning is not None or self._retry is not None or not self._free():
            return
        self._beginning = asyncio.create_task(self._begin_first(message), context=message.context)
        self._beginning.add_done_callback(self._over)

    def began(self, message: QueuedMessage, turn: Turn) -> None:
        """The turn of a message is stored, and the message is not in the store any more."""
        self._forget(message)
        if message.began is not None:
            message.began(turn)

    def stop(self, why: str) -> asyncio.Task[None] | None:
        """Let stored messages wait until a client says to go on. Returns the task that stores it; None if there are none to stop.

        Where it cannot be stored, the queue is stopped until the daemon ends.
        """
        if self.stopped is not None or not any(one.stored and not one.begins for one in self._messages):
            return None
        self.stopped = why
        self._end_retry()
        self._changed()
        self.advance()
        task = asyncio.create_task(self._store_stop())
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)
        return task

    def close(self, error: GatewayError) -> None:
        """Begin nothing any more: clients that wait get this error. Stored messages stay in the store."""
        if self._closed is None:
            self._closed = error
            self._end_retry()
            for message in self.messages:
                if not message.begins:
                    refuse(message, error)
                    self._messages.remove(message)

    async def _store_stop(self) -> None:
        async with self._changing:
            try:
                await self._store.sessions.update(self._session_id, queue_stopped=self.stopped)
            except StoreUnavailable as error:
                log.warning("session %s: it cannot be stored that its queue is stopped: %s", self._session_id, error)

    def _next(self) -> QueuedMessage | None:
        """The first message that is to begin."""
        if self._closed is not None:
            return None
        return next((one for one in self._messages if self.stopped is None or not one.stored), None)

    async def _begin_first(self, message: QueuedMessage) -> None:
        async with self._lock:
            async with self._changing:
                if message is not self._next() or not self._free():
                    return
                message.begins = True
            try:
                turn = await self._begin(message)
            except BaseException as error:
                await self._refused(message, error)
                if not isinstance(error, Exception):
                    raise
            else:
                for waiter in message.waiters:
                    if not waiter.done():
                        waiter.set_result(turn)
            finally:
                message.begins = False

    async def _refused(self, message: QueuedMessage, error: BaseException) -> None:
        """The turn of a message did not begin, or has failed at once: its clients get the error.

        If it has not begun, a message without a client that waits stays in the queue.
        """
        try:
            if message not in self._messages or self._closed is not None:
                return
            if isinstance(error, ShuttingDown | StoreAbandoned):
                message.begins = False
                self.close(error)
            elif not message.stored:
                self._forget(message)
            elif any(not waiter.done() for waiter in message.waiters):
                error = await self._discard(message, error)
            elif isinstance(error, TooMany | StoreUnavailable):
                self._try_again()
            else:
                if not isinstance(error, GatewayError):
                    log.error("session %s: a queued message could not begin", self._session_id, exc_info=error)
                message.begins = False
                self.stop(str(error) if isinstance(error, GatewayError) else f"the gateway failed: {type(error).__name__}")
        finally:
            refuse(message, error)

    async def _discard(self, message: QueuedMessage, error: BaseException) -> BaseException:
        """Remove a message whose client gets an error. Returns the error."""
        try:
            async with self._changing:
                await self._store.queued_messages.remove(self._session_id, message.id)
                self._forget(message)
        except StoreUnavailable as failure:
            self._try_again()
            return StoreUnavailable(
                f"{error}; the message stays in the queue of the session, because it cannot be removed: {failure}"
            )
        return error

    def _try_again(self) -> None:
        def again() -> None:
            self._retry = None
            self.advance()

        self._end_retry()
        self._retry = self._shared.clock.call_later(RETRY, again)

    def _end_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _forget(self, message: QueuedMessage) -> None:
        """The message is not in the queue any more. A queue without stored messages is not stopped."""
        if message in self._messages:
            self._messages.remove(message)
            if not any(one.stored for one in self._messages):
                self.stopped = None
            self._changed()

    def _over(self, beginning: asyncio.Task[None]) -> None:
        self._beginning = None
        if not beginning.cancelled() and (error := beginning.exception()) is not None:
            log.error("session %s: its queue has failed", self._session_id, exc_info=error)
        self.advance()

    def _row(self, message: QueuedMessage) -> QueuedRow:
        changes, key = message.changes, message.key
        settings = None
        if changes is not None:
            settings = SettingsRecord(changes.to_json(), self._shared.encryption.encrypt(changes.to_encrypt))
        hashes = (None, None) if key is None else (key.key, key.digest)
        return QueuedRow(message.id, encoded(message.message), message.created_at, settings, *hashes)


def id_of_key(key: str) -> str:
    """Returns the id of a message that is sent under a (hashed) idempotency key: the same for a repeated request."""
    return f"msg_{key[:32]}"


def refuse(message: QueuedMessage, error: BaseException) -> None:
    """Give an error to the clients that wait for the turn of a message."""
    for waiter in message.waiters:
        if not waiter.done():
            waiter.set_exception(error)


def encoded(message: UserMessage) -> str:
    """Returns a message as JSON."""
    return message.model_dump_json()
