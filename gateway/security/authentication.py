"""Authentication of callers by bearer keys. Which keys there are is in api_keys.py."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from gateway.errors import Unauthorized
from gateway.security.api_keys import NamedKeys

HOW_TO_AUTHENTICATE = "send 'Authorization: Bearer KEY'; `portico key` prints the key"


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `name` is the name of its key; None for a default key, which is the administrator's."""

    name: str | None
    all_sessions: bool

    def sees(self, owner: str | None) -> bool:
        """Whether the caller may use sessions of this owner."""
        return self.all_sessions or owner == self.name


current_key_name: ContextVar[str | None] = ContextVar("key_name", default=None)
"""The name of the key of the current request; None for a default key. Read by the audit log only, never for a decision."""

ADMINISTRATOR = Caller(None, all_sessions=True)
"""The caller with a default key, or any caller if authentication is off. Sees all sessions."""


class Authenticator:
    """Checks keys in constant time. Without any default key, authentication is off.

    With `share_sessions`, callers with named keys see every session.
    """

    def __init__(self, keys: Iterable[str], named: NamedKeys, *, share_sessions: bool = False) -> None:
        self._keys = [key.encode() for key in keys]
        self._named, self._share = named, share_sessions

    @property
    def is_off(self) -> bool:
        return not self._keys

    def check(self, authorization: str | None, token: str | None = None) -> Caller:
        """Return the caller of a request by its Authorization header, or by a token in its body. Raises Unauthorized."""
        caller = self._caller(authorization, token)
        current_key_name.set(caller.name)
        return caller

    def _caller(self, authorization: str | None, token: str | None) -> Caller:
        if self.is_off:
            return ADMINISTRATOR
        scheme, _, key = (authorization or "").partition(" ")
        given = [key.strip()] if scheme.lower() == "bearer" else []
        if token is not None:
            given.append(token)
        if not given:
            raise Unauthorized(f"no API key: {HOW_TO_AUTHENTICATE}")
        # A list, so that every key is compared: the time must not depend on which one matches.
        if any([hmac.compare_digest(key.encode(), known) for key in given for known in self._keys]):
            return ADMINISTRATOR
        for name in map(self._named.name_of, given):
            if name is not None:
                return Caller(name, self._share)
        raise Unauthorized(f"this API key is unknown: {HOW_TO_AUTHENTICATE}")
