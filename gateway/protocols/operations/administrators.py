"""Restricts endpoints to administrators: callers with a default key, or any caller where authentication is off."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from gateway.errors import Forbidden
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.security.authentication import Caller


async def _administrator(caller: CurrentCaller) -> Caller:
    if caller.name is not None:
        raise Forbidden(
            f"the key {caller.name!r} may not do this: it concerns the whole gateway; use a default key (`portico key` prints it)"
        )
    return caller


CurrentAdministrator = Annotated[Caller, Depends(_administrator)]
"""The type of a parameter of an authenticated endpoint that only administrators may use. Others get a 403."""
