"""Who may call: bearer keys, where they come from, and how they are compared."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from gateway.errors import Unauthorized
from gateway.security.api_keys import NamedKeys

WHERE = "send 'Authorization: Bearer KEY'; `portico key` prints the key"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `name` is that of the key, None for the default ones, whose holder the gateway belongs to."""

    name: str | None
    all_sessions: bool

    def sees(self, owner: str | None) -> bool:
        """Whether a session of this owner is there for the caller."""
        return self.all_sessions or owner == self.name


current_key_name: ContextVar[str | None] = ContextVar("key_name", default=None)
"""The name of the key with which this task was asked for; None for a default key. For the audit, which decides nothing by it."""

ADMINISTRATOR = Caller(None, all_sessions=True)
"""Whoever has a default key, or is asked for none: all sessions, those of named keys too."""


class Authenticator:
    """Checks keys in constant time. With no default keys at all, authentication is off.

    `share_sessions`: the holders of named keys see every session.
    """

    def __init__(self, keys: Iterable[str], named: NamedKeys, *, share_sessions: bool = False) -> None:
        self._keys = [key.encode() for key in keys]
        self._named, self._share = named, share_sessions

    @property
    def is_off(self) -> bool:
        return not self._keys

    def check(self, authorization: str | None, token: str | None = None) -> Caller:
        """Whose bearer header, or token from the body, this is. Raises Unauthorized that says what to send."""
        caller = self._caller(authorization, token)
        current_key_name.set(caller.name)
        return caller

    def _caller(self, authorization: str | None, token: str | None) -> Caller:
        if self.is_off:
            return ADMINISTRATOR
        scheme, _, key = (authorization or "").partition(" ")
        offered = [key.strip()] if scheme.lower() == "bearer" else []
        if token is not None:
            offered.append(token)
        if not offered:
            raise Unauthorized(f"no API key: {WHERE}")
        # Every key is compared with every offer, so that the time tells nothing.
        if any([hmac.compare_digest(o.encode(), known) for o in offered for known in self._keys]):
            return ADMINISTRATOR
        for name in map(self._named.name_of, offered):
            if name is not None:
                return Caller(name, self._share)
        raise Unauthorized(f"this API key is not known here: {WHERE}")
