"""Authentication of callers by bearer keys and sign-ins. Which keys there are is in api_keys.py and credentials.py."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.errors import Unauthorized, WrongKey
from gateway.security.loopback import is_direct_and_local
from gateway.security.sign_ins import UNUSED_SECONDS, KeyIdentity, OfferedSignIn, SignInSecrets, digest_of, is_made_by

if TYPE_CHECKING:
    # They take 0.1 s, which `portico acp` has not before its first answer.
    from gateway.security.credentials import Credentials
    from gateway.store.credentials import SignInRow

Authorization = str | OfferedSignIn | None
"""An Authorization header, or what stands for it in a request of the console's page."""
SIGNED_OUT = "this sign-in has ended, or is not this page's: sign in again, by `portico open` or with a key"
HOW_TO_AUTHENTICATE = "send 'Authorization: Bearer KEY'; `portico key` prints the key"


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `name` is the name of its key; None for a default key, which is the administrator's.

    `any_folder` is whether it may name any folder of the gateway's user for a session: an administrator whose program runs on
    this machine and is connected directly.
    """

    name: str | None
    all_sessions: bool
    any_folder: bool = False

    def sees(self, owner: str | None) -> bool:
        """Whether the caller may use sessions of this owner."""
        return self.all_sessions or owner == self.name


FORWARDED_CALLER = "portico.forwarded_caller"
"""The key in the ASGI scope of the `Caller` that another node has authenticated. The signature of the request is checked."""
FORWARDED_BY, FORWARDED_TO = "portico.forwarded_by", "portico.forwarded_to"
"""The keys in the ASGI scope of the id of the node that has forwarded a request, and of the one that it is forwarded to."""

request_is_forwarded: ContextVar[bool] = ContextVar("request_is_forwarded", default=False)
"""Whether the request at work was forwarded by another node: such a request is never forwarded again."""

current_key_name: ContextVar[str | None] = ContextVar("key_name", default=None)
"""The name of the key of the current request; None for a default key. Read by the audit log only, never for a decision."""

ADMINISTRATOR = Caller(None, all_sessions=True)
"""The caller with a default key, or any caller if authentication is off. Sees all sessions."""


LOCAL_ADMINISTRATOR = Caller(None, all_sessions=True, any_folder=True)
"""The same by a direct connection of a program on this machine."""


def is_forwarded(scope: Mapping[str, Any]) -> bool:
    """Return whether another node of a cluster has forwarded a request (its ASGI scope)."""
    return FORWARDED_CALLER in scope


def caller_of_request(caller: Caller, scope: Mapping[str, Any], bind: str) -> Caller:
    """Return the caller with what the request shows about its program. `bind` is the address that the server listens on."""
    return LOCAL_ADMINISTRATOR if caller == ADMINISTRATOR and is_direct_and_local(scope, bind) else caller


@dataclass(frozen=True, slots=True)
class ValidSignIn:
    """A sign-in with its secrets, the key that it was made by, and when it ends if it is not used until then."""

    secrets: SignInSecrets
    key: KeyIdentity
    expires_at: float


class Authenticator:
    """Checks keys in constant time, and sign-ins. Without any default key, authentication is off.

    With `share_sessions`, callers with named keys see every session.
    """

    def __init__(self, keys: Iterable[str], known: Credentials, *, share_sessions: bool = False) -> None:
        given = tuple(keys)
        self._keys = [key.encode() for key in given]
        self._default = [KeyIdentity(None, digest_of(key)) for key in given]
        self._known, self._share = known, share_sessions

    @property
    def is_off(self) -> bool:
        return not self._keys

    @property
    def default_key(self) -> KeyIdentity:
        """The first default key. There is none if authentication is off."""
        return self._default[0]

    async def identity(self, authorization: Authorization) -> KeyIdentity:
        """Return the key of a request, or that of its sign-in. Raises as `check`. Not if authentication is off."""
        caller = await self.check(authorization)
        if isinstance(authorization, OfferedSignIn):
            return self._signed_in(authorization).key
        return KeyIdentity(caller.name, digest_of((authorization or "").partition(" ")[2].strip()))

    def sign_in(self, authorization: Authorization) -> ValidSignIn | None:
        """Return the sign-in of a request that was checked; None if it has another authorization. Raises Unauthorized."""
        return self._signed_in(authorization) if isinstance(authorization, OfferedSignIn) else None

    async def check(self, authorization: Authorization, token: str | None = None, *, again: bool = False) -> Caller:
        """Return the caller of a request by its authorization, or by a token in its body.

        `again` is for a check before each event of a stream: it may be AGAIN_SECONDS late (credentials.py).
        Raises Unauthorized, WrongKey for a key that is unknown, and KeysUnchecked.
        """
        caller = await self._caller(authorization, token, again)
        current_key_name.set(caller.name)
        return caller

    async def _caller(self, authorization: Authorization, token: str | None, again: bool) -> Caller:
        if self.is_off:
            return ADMINISTRATOR
        if isinstance(authorization, OfferedSignIn):
            await self._known.compare(again=again)
            name = self._signed_in(authorization).key.name
            return ADMINISTRATOR if name is None else Caller(name, self._share)
        scheme, _, key = (authorization or "").partition(" ")
        given = [key.strip()] if scheme.lower() == "bearer" else []
        if token is not None:
            given.append(token)
        if not given:
            raise Unauthorized(f"no API key: {HOW_TO_AUTHENTICATE}")
        # A list, so that every key is compared: the time must not depend on which one matches.
        if any([hmac.compare_digest(key.encode(), known) for key in given for known in self._keys]):
            return ADMINISTRATOR
        await self._known.compare(again=again)
        for name in map(self._known.name_of, given):
            if name is not None:
                return Caller(name, self._share)
        raise WrongKey(f"this API key is unknown: {HOW_TO_AUTHENTICATE}")

    def _signed_in(self, given: OfferedSignIn) -> ValidSignIn:
        """Return the sign-in of one of the cookies, whose key is still valid. Raises Unauthorized."""
        for secrets in given.secrets():
            found = self._known.find(secrets)
            key = None if found is None else self._key_of(found, secrets)
            if found is not None and key is not None:
                return ValidSignIn(secrets, key, found.used_at + UNUSED_SECONDS)
        raise Unauthorized(SIGNED_OUT)

    def _key_of(self, found: SignInRow, secrets: SignInSecrets) -> KeyIdentity | None:
        """Return the valid key that a sign-in was made by."""
        if found.name is not None:
            return KeyIdentity(found.name, found.key) if self._known.has(found.name, found.key) else None
        return next((identity for identity in self._default if is_made_by(found, identity, secrets.cookie)), None)
