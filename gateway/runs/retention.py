"""Retention: deletes what is older than the configuration keeps, soon after the start of the gateway and daily while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.config import StoreSettings
from gateway.observability.transcripts import Transcripts
from gateway.store import Store

log = logging.getLogger(__name__)

DAY = 86400.0
"""Seconds."""
START_DELAY = 1.0
"""Seconds from the start of the gateway to the first deletion, which takes seconds if much has expired."""
CHECK_INTERVAL = 600.0
"""Seconds between looks at the clock: a single long sleep does not count the time that the machine was suspended."""


class Retention:
    """Deletes streams of tasks with their transcripts, idempotency keys, the audit, unused sessions, and what deleted ones left.

    `delete_sessions` deletes the sessions that were used last before a time. Its times are those of the wall `clock`.
    """

    def __init__(
        self,
        store: Store,
        transcripts: Transcripts,
        kept: StoreSettings,
        delete_sessions: Callable[[float], Awaitable[None]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store, self._transcripts, self._kept, self._clock = store, transcripts, kept, clock
        self._delete_sessions = delete_sessions
        self._repeating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Delete in the background, after START_DELAY what has expired by now, then daily until `close`. Errors are logged."""
        self._repeating = asyncio.create_task(self._repeat(self._clock.time()))

    async def close(self) -> None:
        """Delete no more."""
        if self._repeating is not None:
            self._repeating.cancel()
            with suppress(asyncio.CancelledError):
                await self._repeating

    async def delete_expired(self, now: float) -> None:
        """Delete what has expired by a time, and return the space of the database file. Tasks that run are kept."""
        kept = self._kept
        await self._store.runs.delete_executions(now - kept.keep_executions_days * DAY)
        await self._store.idempotency_keys.delete_before(now - kept.keep_keys_days * DAY)
        await self._store.audit.delete_before(now - kept.keep_audit_days * DAY)
        if kept.keep_sessions_days:
            await self._delete_sessions(now - kept.keep_sessions_days * DAY)
        for session_id in await self._store.sessions.deleted():
            # The deletion was interrupted.
            while await self._store.sessions.delete_part(session_id):
                pass
        await asyncio.to_thread(self._transcripts.forget_tasks, now - kept.keep_executions_days * DAY)
        # Last: it raises where the disk is full.
        await self._store.release_space()

    async def _repeat(self, last: float) -> None:
        await self._clock.sleep(START_DELAY)
        # Not by the clock as it is now: if it was set forward since the start, idempotency keys in use would be deleted.
        await self._try_to_delete(last)
        while True:
            await self._clock.sleep(CHECK_INTERVAL)
            # A clock that was set back does not postpone it.
            if not 0 <= self._clock.time() - last < DAY:
                last = self._clock.time()
                await self._try_to_delete(last)

    async def _try_to_delete(self, now: float) -> None:
        try:
            await self.delete_expired(now)
        except Exception:
            log.exception("what has expired cannot be deleted; trying again in a day")
