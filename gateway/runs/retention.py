"""Retention: deletes what is older than the configuration keeps, at the start of the gateway and daily while it runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from gateway.config import StoreSettings
from gateway.observability.transcripts import Transcripts
from gateway.store import Store

log = logging.getLogger(__name__)

DAY = 86400.0
"""Seconds."""
CHECK_INTERVAL = 600.0
"""Seconds between looks at the clock: a single long sleep does not count the time that the machine was suspended."""


class Retention:
    """Deletes streams of tasks with their transcripts, idempotency keys and the audit. `clock` gives seconds since the epoch."""

    def __init__(
        self, store: Store, transcripts: Transcripts, kept: StoreSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._transcripts, self._kept, self._clock = store, transcripts, kept, clock
        self._repeating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Delete once, and then daily until `close`. Raises what the store raises the first time."""
        await self.delete_expired()
        self._repeating = asyncio.create_task(self._repeat(self._clock()))

    async def close(self) -> None:
        """Delete no more."""
        if self._repeating is not None:
            self._repeating.cancel()
            with suppress(asyncio.CancelledError):
                await self._repeating

    async def delete_expired(self) -> None:
        """Delete what has expired by now. Tasks that run are kept."""
        kept, now = self._kept, self._clock()
        await self._store.runs.delete_executions(now - kept.keep_executions_days * DAY)
        await self._store.idempotency_keys.delete_before(now - kept.keep_keys_days * DAY)
        await self._store.audit.delete_before(now - kept.keep_audit_days * DAY)
        await asyncio.to_thread(self._transcripts.forget_tasks, now - kept.keep_executions_days * DAY)

    async def _repeat(self, last: float) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            # A clock that was set back does not postpone it.
            if 0 <= self._clock() - last < DAY:
                continue
            last = self._clock()
            try:
                await self.delete_expired()
            except Exception:
                log.exception("what has expired cannot be deleted; trying again in a day")
