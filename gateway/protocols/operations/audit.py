"""`GET /v1/audit`: the decisions about tool calls, searchable. The gateway's own API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict

from gateway.app import Gateway
from gateway.protocols.aap.schema import iso_time
from gateway.protocols.authenticated_routes import CurrentCaller, authenticated_router
from gateway.protocols.operations.api_model import ApiModel
from gateway.store import AuditFilter

MAX_TEXT = 200


class AuditEntry(ApiModel):
    """A decision. `arguments` is JSON, cut after 500 characters, as a string. `by` is as `portico audit` prints it."""

    id: int
    at: str
    session_id: str
    agent: str
    tool: str
    call_id: str
    outcome: str
    by: str
    reason: str | None = None
    arguments: str


class AuditResponse(ApiModel):
    """A page, newest first. `next` is the `before` of the next page, null on the last."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "entries": [
                        {
                            "id": 42,
                            "at": "2026-11-20T09:30:00.000Z",
                            "sessionId": "sess_0f4c1c9e2a7b4d5e8f90123456789abc",
                            "agent": "claude",
                            "tool": "Bash",
                            "callId": "toolu_01",
                            "outcome": "denied",
                            "by": "policy[1]",
                            "reason": "Deleting files is not allowed.",
                            "arguments": '{"command": "rm -r build"}',
                        }
                    ],
                    "next": 42,
                }
            ]
        }
    )

    entries: list[AuditEntry]
    next: int | None = None


Session = Annotated[str | None, Query(description="Only decisions of this session.", max_length=64)]
Agent = Annotated[str | None, Query(description="Only decisions of this agent.", max_length=64)]
Tool = Annotated[str | None, Query(description="Only decisions about calls of this tool.", max_length=255)]
Outcome = Annotated[str | None, Query(description="Only decisions with this outcome, such as `denied`.", max_length=16)]
Text = Annotated[
    str | None, Query(description="A part of the tool, the call, the decider, the reason or the arguments.", max_length=MAX_TEXT)
]
Before = Annotated[int | None, Query(description="The `next` of the previous page.", ge=0, lt=2**63)]
Limit = Annotated[int, Query(description="Entries per page.", ge=1, le=1000)]


def router(gateway: Gateway) -> APIRouter:
    """Return the route of a gateway."""
    routes = authenticated_router(gateway, "operations")

    @routes.get("/v1/audit")
    async def audit(
        caller: CurrentCaller,
        session: Session = None,
        agent: Agent = None,
        tool: Tool = None,
        outcome: Outcome = None,
        q: Text = None,
        before: Before = None,
        limit: Limit = 100,
    ) -> AuditResponse:
        """Decisions about tool calls, newest first: of all sessions for an administrator, else of those that the key has."""
        wanted = AuditFilter(
            session_id=session,
            agent=agent,
            tool=tool,
            outcome=outcome,
            text=q,
            before=before,
            owned=not caller.all_sessions,
            owner=caller.name,
        )
        found = await gateway.store.audit.search(wanted, limit + 1)
        entries = [
            AuditEntry(
                id=number,
                at=iso_time(record.at),
                session_id=record.session_id,
                agent=record.agent,
                tool=record.tool,
                call_id=record.call_id,
                outcome=record.outcome,
                by=record.by,
                reason=record.reason,
                arguments=record.arguments,
            )
            for number, record in found[:limit]
        ]
        return AuditResponse(entries=entries, next=entries[-1].id if len(found) > limit else None)

    return routes
