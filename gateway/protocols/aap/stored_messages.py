"""The stored messages of a session by their positions: `GET /sessions/:id/messages`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict
from pydantic_core import to_json

from drivers.contract.messages import Message
from gateway.app import Gateway
from gateway.protocols.aap.common_routes import PAGE, LimitQuery, version_routers
from gateway.protocols.aap.schema import WireModel
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.route_metadata import errors
from gateway.store import MessageRow

FirstQuery = Annotated[int, Query(ge=0, le=2**31, description="The position of the first message.")]


class StoredMessage(WireModel):
    """A message. `seq` is the number of the event that completed it; null for one that the session began with."""

    position: int
    seq: int | None
    message: Message


class MessagesResponse(WireModel):
    """Some messages of a session, and how many it has."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "messages": [
                        {"position": 0, "seq": 1, "message": {"role": "user", "content": "What is 2 + 2?"}},
                        {"position": 1, "seq": 3, "message": {"role": "assistant", "content": "4"}},
                    ],
                    "total": 2,
                }
            ]
        }
    )

    messages: list[StoredMessage]
    total: int


def router(gateway: Gateway, base: str, tag: str, session_path: str) -> APIRouter:
    """The route under the path of a session, at a base URL, with this tag."""
    _, routes = version_routers(gateway, base, tag)

    @routes.get(session_path + "/messages", response_model=MessagesResponse, responses=errors(404))
    async def messages(caller: CurrentCaller, session_id: str, first: FirstQuery = 0, limit: LimitQuery = PAGE) -> Response:
        """Stored messages by their positions. A page may have fewer than requested: those of about 1 MiB."""
        session = await gateway.sessions.get(caller, session_id, reading=True)
        total = await session.history.count()
        rows = await gateway.store.messages.numbered(session.id, first, limit)
        listed = b",".join([_json(position, row) for position, row in rows])
        return Response(b'{"messages":[%b],"total":%d}' % (listed, total), media_type="application/json")

    return routes


def _json(position: int, row: MessageRow) -> bytes:
    return b'{"position":%d,"seq":%b,"message":%b}' % (position, to_json(row.seq), row.body.encode())
