"""Credentials: the named keys, sign-ins and one-time codes of a gateway. They are in the store, which nodes of a cluster share.

Each check of a key or a sign-in asks a copy in memory, which is compared with the store before by one small query. Checks that
wait share a comparison, and without checks there is none.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.errors import KeysUnchecked, StoreUnavailable
from gateway.security.named_keys import NamedKeys
from gateway.security.sign_ins import (
    CODE_SECONDS,
    MAX_CODES,
    MAX_SIGN_INS,
    UNUSED_SECONDS,
    KeyIdentity,
    SignInSecrets,
    compared_key,
    digest_of,
    masked,
)
from gateway.store.credentials import CredentialRepository, NamedKeyRow, SignInRow

log = logging.getLogger(__name__)

Row = TypeVar("Row", NamedKeyRow, SignInRow)

AGAIN_SECONDS = 0.01
"""A check before an event of a stream does without a comparison if the last one was so short a time ago."""
ANSWER_SECONDS = 0.5
"""A comparison is waited for so long. Then the copy is used as it is, until it is STALE_SECONDS old."""
STALE_SECONDS = 30.0
"""A copy that could not be compared for so long is not used any more. A restart of the server takes less."""
STALE = f"this API key cannot be checked: the store has not answered for {STALE_SECONDS:g} seconds; try again when it does"
RELOAD_SECONDS = 60.0
"""After which all is read again, also without a change: the times of the last use are no change."""
KEY_USED_INTERVAL, SIGN_IN_USED_INTERVAL = 60.0, 3600.0
"""The last use of a key, or of a sign-in, is stored at most once in so many seconds."""


class Credentials:
    """The credentials of a gateway. `await open(...)` before the first request."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._keys: dict[str, NamedKeyRow] = {}
        self._sign_ins: dict[str, SignInRow] = {}
        self._used_keys: dict[str, float] = {}
        self._used_sign_ins: dict[str, float] = {}
        self._storing: asyncio.Task[None] | None = None
        self._change: str | None = None
        self._compared_at = self._loaded_at = self._began = float("-inf")
        self._loading = asyncio.Lock()
        self._comparing: asyncio.Task[None] | None = None
        self._failed = False

    async def open(self, repository: CredentialRepository) -> None:
        """Read all credentials."""
        self._repository, self._named_keys = repository, NamedKeys(repository)
        await self._load()

    async def close(self) -> None:
        """Store the last uses that are not stored yet, if the store answers. Idempotent."""
        if self._comparing is not None:
            self._comparing.cancel()
        if self._storing is not None:
            await asyncio.wait([self._storing])
            self._storing = None
            with suppress(StoreUnavailable):
                await self._store_uses()

    # -- the copy: asked after `compare`, without waiting ---------------------------------------------------------------------

    def name_of(self, key: str) -> str | None:
        """Return the name of a valid key and record its use; None for any other key."""
        # A look-up by hash leaks nothing by its timing: only the key itself gives a chosen hash.
        digest = digest_of(key)
        found = self._keys.get(digest)
        if found is None:
            return None
        now = self._clock.time()
        if found.used_at is None or now - found.used_at > KEY_USED_INTERVAL:
            self._keys[digest] = replace(found, used_at=now)
            self._record_use(self._used_keys, digest, now)
        return found.name

    def has(self, name: str, digest: str) -> bool:
        """Whether there is a key of this name and of this SHA-256 in hexadecimal digits."""
        found = self._keys.get(digest)
        return found is not None and found.name == name

    def find(self, given: SignInSecrets) -> SignInRow | None:
        """Return the sign-in with these secrets, and record its use; None if there is none, or it has ended."""
        digest, now = digest_of(given.cookie), self._clock.time()
        found = self._sign_ins.get(digest)
        if found is None or not hmac.compare_digest(found.token, digest_of(given.token)) or now > found.used_at + UNUSED_SECONDS:
            return None
        if now - found.used_at > SIGN_IN_USED_INTERVAL:
            found = self._sign_ins[digest] = replace(found, used_at=now)
            self._record_use(self._used_sign_ins, digest, now)
        return found

    # -- changes --------------------------------------------------------------------------------------------------------------

    async def keys(self) -> Sequence[NamedKeyRow]:
        """Return all keys, the oldest first."""
        return [_later_used(key, self._keys.get(key.digest)) for key in await self._named_keys.all()]

    async def add_key(self, name: str) -> str:
        """Create a key and return it; only its hash is stored. Raises ConfigError if the name is in use or cannot be one."""
        key = await self._named_keys.add(name)
        await self._load()
        return key

    async def remove_key(self, name: str) -> None:
        """Revoke a key. Raises ConfigError if no key has this name."""
        await self._named_keys.remove(name)
        await self._load()

    async def begin_sign_in(self, identity: KeyIdentity) -> SignInSecrets:
        """Store a new sign-in of a key, and return its secrets."""
        now = self._clock.time()
        made = SignInSecrets(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        key = compared_key(identity, made.cookie)
        row = SignInRow(digest_of(made.cookie), identity.name, key, digest_of(made.token), now)
        await self._repository.add_sign_in(row, now - UNUSED_SECONDS, MAX_SIGN_INS)
        await self._load()
        return made

    async def end_sign_in(self, given: SignInSecrets) -> None:
        """End the sign-in with these secrets, if there is one."""
        if self.find(given) is not None:
            await self._repository.end_sign_in(digest_of(given.cookie))
            await self._load()

    async def make_code(self, identity: KeyIdentity) -> str:
        """Return a new code for a sign-in of this key."""
        code = secrets.token_urlsafe(24)
        key = masked(identity.digest, code)
        await self._repository.add_code(digest_of(code), identity.name, key, CODE_SECONDS, MAX_CODES)
        return code

    async def use_code(self, code: str) -> KeyIdentity | None:
        """Return the key of a code, which cannot be used again; None for a code that was used, is too old or never existed."""
        found = await self._repository.use_code(digest_of(code))
        return None if found is None else KeyIdentity(found[0], masked(found[1], code))

    # -- comparisons ----------------------------------------------------------------------------------------------------------

    async def compare(self, *, again: bool = False) -> None:
        """Compare the copy with the store as it is now or later. `again`: a comparison of AGAIN_SECONDS ago is enough.

        One comparison serves all calls that wait for it. If the store does not answer, the copy stays as it is.
        Raises KeysUnchecked if it is STALE_SECONDS old.
        """
        age = AGAIN_SECONDS if again else 0.0
        if self._age < age:
            return
        if self._comparing is not None:
            # It may have read the store before this call.
            await self._wait_for(self._comparing)
        if not self._age < age:
            await self._wait_for(self._comparing or self._begin_comparing())
        if self._age > STALE_SECONDS:
            raise KeysUnchecked(STALE)

    @property
    def _age(self) -> float:
        return self._clock.monotonic() - self._compared_at

    def _begin_comparing(self) -> asyncio.Task[None]:
        self._began = self._clock.monotonic()
        self._comparing = asyncio.create_task(self._compare())
        return self._comparing

    async def _wait_for(self, comparing: asyncio.Task[None]) -> None:
        # Without a copy that can be used, for as long as any read waits for the store.
        left = None if self._age > STALE_SECONDS else self._began + ANSWER_SECONDS - self._clock.monotonic()
        if left is None or left > 0:
            await self._clock.wait([comparing], left)

    async def _compare(self) -> None:
        began = self._clock.monotonic()
        try:
            if began - self._loaded_at > RELOAD_SECONDS or await self._repository.change() != self._change:
                await self._load()
            else:
                self._compared_at = began
            self._failed = False
        except Exception as error:
            if not self._failed:
                log.warning(
                    "API keys are not compared with the store: %s", error, exc_info=not isinstance(error, StoreUnavailable)
                )
            self._failed = True
        finally:
            self._comparing = None

    async def _load(self) -> None:
        # One after the other: what was read before a revocation must not replace what was read after it.
        async with self._loading:
            began = self._clock.monotonic()
            rows = await self._repository.all()
            self._change, self._compared_at, self._loaded_at = rows.change, began, began
            self._keys = {row.digest: _later_used(row, self._keys.get(row.digest)) for row in rows.keys}
            self._sign_ins = {row.cookie: _later_used(row, self._sign_ins.get(row.cookie)) for row in rows.sign_ins}

    def _record_use(self, used: dict[str, float], digest: str, now: float) -> None:
        used[digest] = now
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_recorded())

    async def _store_recorded(self) -> None:
        try:
            await self._store_uses()
        except Exception as error:
            # They are stored with the next one.
            log.warning("the last use of API keys is not stored: %s", error)

    async def _store_uses(self) -> None:
        while self._used_keys or self._used_sign_ins:
            keys, sign_ins = self._used_keys.copy(), self._used_sign_ins.copy()
            await self._repository.record_uses(keys, sign_ins)
            for used, stored in ((self._used_keys, keys), (self._used_sign_ins, sign_ins)):
                for digest, at in stored.items():
                    if used.get(digest) == at:
                        del used[digest]


def _later_used(stored: Row, known: Row | None) -> Row:
    """Return the row of the copy if that has a later use than the stored one."""
    return known if known is not None and (known.used_at or 0.0) > (stored.used_at or 0.0) else stored
