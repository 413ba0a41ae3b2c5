"""What the routes of every version have in common, and where each version is served."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.gateway import Gateway
from gateway.protocols.authentication import authenticated_route

AfterQuery = Annotated[str | None, Query(description="The `next` of the page before.")]
LimitQuery = Annotated[int, Query(ge=1, le=1000, description="How many a page.")]
PAGE = 100


def version_router(gateway: Gateway) -> tuple[APIRouter, APIRouter]:
    """Routes that are open to everybody, and routes that ask for the key."""
    return APIRouter(), APIRouter(route_class=authenticated_route(gateway.auth))
