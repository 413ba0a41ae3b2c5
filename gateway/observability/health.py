"""Whether the gateway can take work now, and why not: for `/readyz`."""

from __future__ import annotations

import asyncio
import logging
import time

from gateway.store import Store

log = logging.getLogger(__name__)

PATIENCE = 3.0
"""Seconds that the store has for one small write."""
FRESH = 1.0
"""Seconds for which an answer holds: whoever asks needs no key, and each answer costs a write."""


class ReadinessCheck:
    """Asks the store by writing to it, at most once in `FRESH` seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asking = asyncio.Lock()
        self._known: str | None = None
        self._known_at = -FRESH

    async def problem(self) -> str | None:
        """Why nothing can be stored; None if it can."""
        async with self._asking:
            if time.monotonic() - self._known_at >= FRESH:
                self._known = await self._try_store()
                self._known_at = time.monotonic()
            return self._known

    async def _try_store(self) -> str | None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._store.touch()
        except TimeoutError:
            return f"the store did not take a write within {PATIENCE:g} s; its disk may be slow or another program may hold it"
        except Exception as error:
            log.exception("the store cannot be written")
            return f"the store cannot be written ({type(error).__name__}); the gateway's log says why"
        return None
