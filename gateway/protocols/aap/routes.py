"""What the routes of every version have in common, and where each version is served."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.gateway import Gateway
from gateway.protocols.aap.shapes import ErrorResponse
from gateway.protocols.guard import guarded

Responses = dict[int | str, dict[str, Any]]

_STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
_REFUSED: Responses = {
    400: {"model": ErrorResponse, "description": "The request is wrong; nothing has changed."},
    401: {"model": ErrorResponse, "description": "No key, or a wrong one."},
    "default": {"model": ErrorResponse, "description": "Refused; the text says why and what to do."},
}

FOUND: Responses = {404: {"model": ErrorResponse, "description": "There is no such session or history."}}
STREAMED: Responses = {
    200: {"description": "JSON with `stream: none`, else server-sent events.", **_STREAM},
    **FOUND,
    409: {"model": ErrorResponse, "description": "The session is at work on a turn."},
}
CREATED: Responses = {
    201: {"description": "With `stream: none`: the session's first answer."},
    200: {"description": "With `stream: delta` or `message`: server-sent events, `session_start` first.", **_STREAM},
}

AfterQuery = Annotated[str | None, Query(description="The `next` of the page before.")]
LimitQuery = Annotated[int, Query(ge=1, le=1000, description="How many a page.")]
PAGE = 100


def version_router(gateway: Gateway) -> tuple[APIRouter, APIRouter]:
    """Routes that are open to everybody, and routes that ask for the key."""
    return APIRouter(), APIRouter(route_class=guarded(gateway.auth), responses=_REFUSED)
