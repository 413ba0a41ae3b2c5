"""What the routes of all versions share: paging parameters, and routers with and without authentication."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.app import Gateway
from gateway.protocols.authenticated_routes import authenticated_router, public_router

AfterQuery = Annotated[str | None, Query(description="The `next` of the previous page.")]
LimitQuery = Annotated[int, Query(ge=1, le=1000, description="Items per page.")]
PAGE = 100


def version_routers(gateway: Gateway, base: str, tag: str) -> tuple[APIRouter, APIRouter]:
    """Return a router for routes that need no key, and one for those that do. Both answer 401 to a wrong key.

    `base` begins the paths of their routes, `tag` is that of the routes in the OpenAPI document.
    """
    return public_router(gateway, tag, prefix=base), authenticated_router(gateway, tag, prefix=base)
