"""Authentication of callers by bearer keys. Which keys there are is in api_keys.py."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from gateway.errors import Unauthorized
from gateway.security.api_keys import NamedKeys
from gateway.security.loopback import is_direct_and_local

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


current_key_name: ContextVar[str | None] = ContextVar("key_name", default=None)
"""The name of the key of the current request; None for a default key. Read by the audit log only, never for a decision."""

ADMINISTRATOR = Caller(None, all_sessions=True)
"""The caller with a default key, or any caller if authentication is off. Sees all sessions."""


LOCAL_ADMINISTRATOR = Caller(None, all_sessions=True, any_folder=True)
"""The same by a direct connection of a program on this machine."""


def caller_of_request(caller: Caller, scope: Mapping[str, Any], bind: str) -> Caller:
    """Return the caller with what the request shows about its program. `bind` is the address that the server listens on."""
    return LOCAL_ADMINISTRATOR if caller == ADMINISTRATOR and is_direct_and_local(scope, bind) else caller


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
