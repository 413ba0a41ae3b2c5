"""The readiness check of `/readyz`: whether the store accepts writes, and whether there is space for more."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryFile

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.store import Store

log = logging.getLogger(__name__)

WRITE_TIMEOUT = 3.0
"""Seconds for one small write."""
FREE_BYTES = 1024 * 1024
"""What must fit on the disk: about one row of events. The write to the store itself may reuse space that the store has."""
DISK_FULL = f"the disk is full: {FREE_BYTES // 1024} KiB cannot be written"
CACHE_SECONDS = 1.0
"""How long a result is reused: the endpoint needs no key, and each check costs a write."""
DRAINED = "this node is drained: other nodes take what is new; after a restart it takes work again"
"""Why a drained node is not ready."""


class ReadinessCheck:
    """Checks the store by a write, and `folders` by a temporary file, at most once in CACHE_SECONDS."""

    def __init__(self, store: Store, folders: Collection[Path], clock: Clock = SYSTEM_CLOCK) -> None:
        self._store, self._folders, self._clock = store, folders, clock
        self._lock = asyncio.Lock()
        self._result: str | None = None
        self._checked_at = float("-inf")

    async def problem(self) -> str | None:
        """Return why nothing more can be stored; None if it can."""
        async with self._lock:
            if self._clock.monotonic() - self._checked_at >= CACHE_SECONDS:
                self._result = await self._check_store() or await asyncio.to_thread(self._check_space)
                self._checked_at = self._clock.monotonic()
            return self._result

    async def _check_store(self) -> str | None:
        try:
            async with self._clock.timeout(WRITE_TIMEOUT):
                await self._store.touch()
        except TimeoutError:
            return (
                f"the store did not take a write within {WRITE_TIMEOUT:g} s; its disk may be slow or another program may hold it"
            )
        except Exception as error:
            log.exception("the store cannot be written")
            return f"the store cannot be written ({type(error).__name__}); the gateway's log has the reason"
        return None

    def _check_space(self) -> str | None:
        try:
            for folder in self._folders:
                check_space(folder)
        except OSError as error:
            log.error("the folder of the data cannot be written: %s", error)
            if is_disk_full(error):
                return DISK_FULL
            return f"the folder of the data cannot be written ({error.strerror}); the gateway's log has the reason"
        return None


def check_space(folder: Path) -> None:
    """Write FREE_BYTES into a temporary file of the folder. Blocks. Raises OSError if they cannot be written."""
    with TemporaryFile(dir=folder) as file:
        file.write(b"\0" * FREE_BYTES)
        file.flush()


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
