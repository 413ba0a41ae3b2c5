"""The bearer key as a dependency of routes, the same for every protocol."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Header

from gateway.security import Authenticator


def guard(auth: Authenticator) -> Any:
    """A dependency that lets only callers with a key through; others get 401."""

    async def check(authorization: str | None = Header(default=None)) -> None:
        auth.check(authorization)

    return Depends(check)
