"""The search in titles and messages: `GET /search`."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from gateway.app import Gateway
from gateway.errors import BadRequest
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import SESSION_ID, OmitIfNone, WireModel, iso_time
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.route_metadata import errors
from gateway.sessions.search import Found

WordsQuery = Annotated[
    str,
    Query(
        max_length=1000,
        description="Words, each the beginning of one in the text; those in quotation marks are whole and stand together.",
    ),
]
AgentQuery = Annotated[str | None, Query(max_length=64, description="Sessions of this agent only.")]
LimitQuery = Annotated[int, Query(ge=1, le=100, description="Results per page.")]
AfterQuery = Annotated[str | None, Query(max_length=500, description="The `next` of the previous page.")]


class SnippetPart(WireModel):
    """A part of a text, and whether it is what was searched for."""

    text: str
    match: bool


class SearchResult(WireModel):
    """A message or a title. `position` and `seq` are those of the message, as in `GET /sessions/:id/messages`."""

    session_id: str = Field(alias="sessionId")
    title: str | None
    agent: str
    updated_at: str = Field(alias="updatedAt")
    role: Literal["title", "user", "assistant"]
    position: int | None
    seq: int | None
    snippet: list[SnippetPart]

    @classmethod
    def of(cls, found: Found) -> SearchResult:
        """Return what was found."""
        return cls(
            session_id=found.session_id,
            title=found.title,
            agent=found.agent,
            updated_at=iso_time(found.used_at),
            role=found.role,
            position=found.position,
            seq=found.seq,
            snippet=[SnippetPart(text=text, match=match) for text, match in found.excerpt],
        )


class SearchResponse(WireModel):
    """A page of results; `next` is absent on the last."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "results": [
                        {
                            "sessionId": SESSION_ID,
                            "title": "Arithmetic",
                            "agent": "claude",
                            "updatedAt": "2026-11-20T09:30:04.125Z",
                            "role": "user",
                            "position": 0,
                            "seq": 1,
                            "snippet": [{"text": "What is the ", "match": False}, {"text": "sum", "match": True}],
                        }
                    ]
                }
            ]
        }
    )

    results: list[SearchResult]
    next: OmitIfNone[str] = None


def router(gateway: Gateway, base: str, tag: str) -> APIRouter:
    """The route at a base URL, with this tag."""
    _, routes = version_routers(gateway, base, tag)

    @routes.get("/search", responses=errors(501))
    async def search(
        caller: CurrentCaller, q: WordsQuery, agent: AgentQuery = None, limit: LimitQuery = 20, after: AfterQuery = None
    ) -> SearchResponse:
        """Search the titles of sessions and the text of their messages, the newest session first."""
        results = await gateway.search.search(caller, q, agent=agent, limit=limit, after=_decoded(after))
        more = None if results.next is None else _encoded(results.next)
        return SearchResponse(results=[SearchResult.of(found) for found in results.found], next=more)

    return routes


def _encoded(cursor: int) -> str:
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).decode()


def _decoded(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    try:
        found: Any = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        if type(found) is int and 0 <= found < 2**63:
            return found
    except ValueError:
        pass
    raise BadRequest("after: not a cursor of this search; pass the `next` of the previous page unchanged")
