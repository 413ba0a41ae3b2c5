"""Wakes the readers of logs that other nodes write, by notifications of the database, which one thread receives."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from gateway.store import Store

log = logging.getLogger(__name__)

STOP_TIMEOUT = 0.2
"""Seconds that the end of the thread is waited for."""
Noted = Callable[[Sequence[str]], bool]
"""Called in the thread with the items of a notification (gateway/store/notifications.py). Whether `Woken` is to be called."""
Woken = Callable[[set[str] | None], Awaitable[None]]
"""Called with items, or with None where notifications may have been lost."""


class Wakeups:
    """Call `start` in the event loop. Notifications that come while `woken` is at work are for its next call, all in one."""

    def __init__(self, store: Store, noted: Noted, woken: Woken) -> None:
        self._store, self._noted, self._woken = store, noted, woken
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._work: asyncio.Task[None] | None = None
        self._changed: set[str] = set()
        self._all = False
        self.receiving = asyncio.Event()
        """Set once notifications are received. What other nodes have written before may have been missed."""

    def start(self) -> None:
        """Receive notifications from now on."""
        loop = asyncio.get_running_loop()

        def notified(items: Sequence[str] | None) -> None:
            # Most are about logs that nobody follows here. The event loop goes on with what it does.
            if items is None or self._noted(items):
                # The loop may be closed.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._notified, items)

        self._thread = threading.Thread(
            target=self._store.listen, args=(notified, self._stopped), name="store-listener", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """Receive no more notifications."""
        self._stopped.set()
        if self._work is not None:
            self._work.cancel()
        if self._thread is not None:
            self._store.stop_listening()
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, STOP_TIMEOUT)

    def _notified(self, items: Sequence[str] | None) -> None:
        if self._stopped.is_set():
            return
        if items is None:
            self._all = True
        else:
            self._changed.update(items)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._wake())

    async def _wake(self) -> None:
        while self._changed or self._all:
            changed, self._changed = (None if self._all else self._changed), set()
            self._all = False
            try:
                await self._woken(changed)
                if changed is None:
                    self.receiving.set()
            except Exception as error:
                # The readers are woken by the next poll.
                log.warning("events of other nodes cannot be read: %s", error)
