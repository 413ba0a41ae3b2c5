"""The readiness check of `/readyz`: whether the store accepts writes."""

from __future__ import annotations

import asyncio
import logging
import time

from gateway.store import Store

log = logging.getLogger(__name__)

WRITE_TIMEOUT = 3.0
"""Seconds for one small write."""
CACHE_SECONDS = 1.0
"""How long a result is reused: the endpoint needs no key, and each check costs a write."""


class ReadinessCheck:
    """Checks the store by a write, at most once in CACHE_SECONDS."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._result: str | None = None
        self._checked_at = -CACHE_SECONDS

    async def problem(self) -> str | None:
        """Return why the store accepts no writes; None if it does."""
        async with self._lock:
            if time.monotonic() - self._checked_at >= CACHE_SECONDS:
                self._result = await self._check_store()
                self._checked_at = time.monotonic()
            return self._result

    async def _check_store(self) -> str | None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._store.touch()
        except TimeoutError:
            return (
                f"the store did not take a write within {WRITE_TIMEOUT:g} s; its disk may be slow or another program may hold it"
            )
        except Exception as error:
            log.exception("the store cannot be written")
            return f"the store cannot be written ({type(error).__name__}); the gateway's log has the reason"
        return None
