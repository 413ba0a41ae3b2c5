"""The named keys, sign-ins and one-time codes that all nodes of a cluster share: they are in the store.

Each request asks a copy in memory. It is compared with the store twice a second: every node refuses a key that is revoked
anywhere within two seconds. A key or a sign-in that is not in the copy is looked for in the store at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from contextlib import suppress
from dataclasses import replace

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.errors import KeysUnchecked, StoreUnavailable
from gateway.nodes.shared_keys import SharedKeys
from gateway.security.api_keys import USED_AT_INTERVAL as KEY_USED_INTERVAL
from gateway.security.api_keys import NamedKey
from gateway.security.sign_in_codes import CODE_SECONDS, MAX_CODES
from gateway.security.sign_ins import MAX_SIGN_INS, UNUSED_SECONDS, KeyIdentity, SignIn, SignInSecrets, digest_of, new_sign_in
from gateway.security.sign_ins import USED_AT_INTERVAL as SIGN_IN_USED_INTERVAL
from gateway.store.credentials import CredentialRepository, NamedKeyRow, SignInRow

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""Between two comparisons with the store."""
COMPARE_SECONDS = 0.05
"""Between two comparisons for requests with unknown keys, which anybody can send."""
RELOAD_SECONDS = 60.0
"""After which all is read again, also without a change: the times of the last use are no change."""
STALE_SECONDS = 30.0
"""A copy that could not be compared for so long is not used any more. A restart of the server takes less."""
STALE = f"this API key cannot be checked: the store has not answered for {STALE_SECONDS:g} seconds; try again when it does"


class SharedCredentials:
    """The credentials of a cluster, on one of its nodes. `await open(...)` before the first request."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._keys: dict[str, NamedKeyRow] = {}
        self._sign_ins: dict[str, SignIn] = {}
        self._used_keys: dict[str, float] = {}
        self._used_sign_ins: dict[str, float] = {}
        self._change: str | None = None
        self._compared_at = self._loaded_at = float("-inf")
        self._loading, self._comparing = asyncio.Lock(), asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None

    async def open(self, repository: CredentialRepository, *, poll: float = POLL_SECONDS) -> None:
        """Read all credentials, and go on to compare them every `poll` seconds; with 0 only `refresh` does."""
        self._repository, self._stored_keys = repository, SharedKeys(repository, self._clock)
        await self._load()
        if poll:
            self._polling = asyncio.create_task(self._poll(poll))

    async def close(self) -> None:
        """Store the last uses that are not stored yet, if the store answers. Idempotent."""
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
            self._polling = None
            with suppress(StoreUnavailable):
                await self._store_uses()

    # -- asked at each request ----------------------------------------------------------------------------------------------

    def name_of(self, key: str) -> str | None:
        """As KnownCredentials. Raises KeysUnchecked if the copy is too old."""
        self._require_fresh()
        digest = digest_of(key)
        found = self._keys.get(digest)
        if found is None:
            return None
        now = self._clock.time()
        if found.used_at is None or now - found.used_at > KEY_USED_INTERVAL:
            self._keys[digest] = replace(found, used_at=now)
            self._used_keys[digest] = now
        return found.name

    def has(self, name: str, digest: str) -> bool:
        found = self._keys.get(digest)
        return found is not None and found.name == name

    def find(self, given: SignInSecrets) -> SignIn | None:
        """As KnownCredentials. Raises KeysUnchecked if the copy is too old."""
        self._require_fresh()
        digest, now = digest_of(given.cookie), self._clock.time()
        found = self._sign_ins.get(digest)
        if found is None or not hmac.compare_digest(found.token, digest_of(given.token)) or now > found.expires_at:
            return None
        if now - found.used_at > SIGN_IN_USED_INTERVAL:
            found = self._sign_ins[digest] = replace(found, used_at=now)
            self._used_sign_ins[digest] = now
        return found

    def _require_fresh(self) -> None:
        if self._clock.monotonic() - self._compared_at > STALE_SECONDS:
            raise KeysUnchecked(STALE)

    # -- changes ------------------------------------------------------------------------------------------------------------

    async def keys(self) -> list[NamedKey]:
        return await self._stored_keys.keys()

    async def add_key(self, name: str) -> str:
        key = await self._stored_keys.add_key(name)
        await self._load()
        return key

    async def remove_key(self, name: str) -> None:
        await self._stored_keys.remove_key(name)
        await self._load()

    async def begin_sign_in(self, identity: KeyIdentity) -> SignInSecrets:
        now = self._clock.time()
        made, found = new_sign_in(identity, now)
        row = SignInRow(digest_of(made.cookie), found.name, found.key, found.token, now)
        await self._repository.add_sign_in(row, now - UNUSED_SECONDS, MAX_SIGN_INS)
        await self._load()
        return made

    async def end_sign_in(self, given: SignInSecrets) -> None:
        if self.find(given) is not None:
            await self._repository.end_sign_in(digest_of(given.cookie))
            await self._load()

    async def make_code(self, identity: KeyIdentity) -> str:
        code = secrets.token_urlsafe(24)
        key = _masked(identity.digest, code)
        await self._repository.add_code(digest_of(code), identity.name, key, CODE_SECONDS, MAX_CODES)
        return code

    async def use_code(self, code: str) -> KeyIdentity | None:
        found = await self._repository.use_code(digest_of(code))
        return None if found is None else KeyIdentity(found[0], _masked(found[1], code))

    # -- the copy -----------------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Compare the copy with the store, read it again after a change, and store the last uses. Raises StoreUnavailable."""
        began = self._clock.monotonic()
        if began - self._loaded_at > RELOAD_SECONDS or await self._repository.change() != self._change:
            await self._load()
        else:
            self._compared_at = began
        await self._store_uses()

    async def compare(self) -> None:
        """Compare the copy with the store as it is now or later, for a request with an unknown key. One comparison serves all
        requests that wait for it. A store that does not answer leaves the copy as it is."""
        wanted = self._clock.monotonic()
        async with self._comparing:
            if self._compared_at < wanted:
                await self._clock.sleep(self._compared_at + COMPARE_SECONDS - self._clock.monotonic())
                with suppress(StoreUnavailable):
                    await self.refresh()

    async def _load(self) -> None:
        # One after the other: what was read before a revocation must not replace what was read after it.
        async with self._loading:
            began = self._clock.monotonic()
            rows = await self._repository.all()
            self._change, self._compared_at, self._loaded_at = rows.change, began, began
            self._keys = {row.digest: row for row in rows.keys}
            self._sign_ins = {row.cookie: SignIn(row.name, row.key, row.token, row.used_at) for row in rows.sign_ins}
            for digest, at in self._used_keys.items():
                if digest in self._keys:
                    self._keys[digest] = replace(self._keys[digest], used_at=at)
            for digest, at in self._used_sign_ins.items():
                if digest in self._sign_ins:
                    self._sign_ins[digest] = replace(self._sign_ins[digest], used_at=at)

    async def _store_uses(self) -> None:
        keys, sign_ins = self._used_keys.copy(), self._used_sign_ins.copy()
        if keys or sign_ins:
            await self._repository.record_uses(keys, sign_ins)
            for used, stored in ((self._used_keys, keys), (self._used_sign_ins, sign_ins)):
                for digest, at in stored.items():
                    if used.get(digest) == at:
                        del used[digest]

    async def _poll(self, seconds: float) -> None:
        failed = False
        while True:
            await self._clock.sleep(seconds)
            try:
                await self.refresh()
            except StoreUnavailable as error:
                if not failed:
                    log.warning("API keys are not compared with the store: %s", error)
                failed = True
            except Exception:
                if not failed:
                    log.exception("API keys are not compared with the store")
                failed = True
            else:
                failed = False


def _masked(digest: str, code: str) -> str:
    """Return a digest as it is stored with a code, or the digest of what is stored. Only with the code one is got from the other:
    a default key that a person has chosen could be guessed from its digest."""
    mask = hashlib.sha256(b"portico sign-in code:" + code.encode()).digest()
    return bytes(a ^ b for a, b in zip(bytes.fromhex(digest), mask, strict=True)).hex()
