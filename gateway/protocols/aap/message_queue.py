"""The queue of a session, an extension of every version: its messages are listed, changed, moved and removed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from drivers.contract.messages import UserMessage
from gateway.app import Gateway
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import SESSION_ID, USER, OmitIfNone, WireModel, iso_time
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.route_metadata import BODY, errors
from gateway.sessions.message_checks import check_messages, check_prompt
from gateway.sessions.message_queue import QueuedMessage
from gateway.sessions.session import Session

MESSAGE_ID = "msg_5b2e8c1f9a7d4e3b8f6a0c2d1e9b7a5f"
EXAMPLE: JsonDict = {
    "id": MESSAGE_ID,
    "message": USER,
    "createdAt": "2026-11-20T09:30:04.125Z",
    "stored": True,
    "begins": False,
}


class QueuedMessageInfo(WireModel):
    """A message that waits for its turn.

    One that is not `stored` leaves the queue when its client disconnects, and cannot be changed. `begins`: its turn is being
    started, and it cannot be changed or removed any more.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    id: str
    message: UserMessage
    created_at: str = Field(alias="createdAt")
    stored: bool
    begins: bool

    @classmethod
    def of(cls, queued: QueuedMessage) -> QueuedMessageInfo:
        """Return a queued message as a client gets it."""
        created_at = iso_time(queued.created_at)
        return cls(id=queued.id, message=queued.message, created_at=created_at, stored=queued.stored, begins=queued.begins)


class QueueResponse(WireModel):
    """The messages in their order. `stopped` is why they do not begin before a client says to go on; absent if they do."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"sessionId": SESSION_ID, "stopped": "cancelled", "messages": [EXAMPLE]}]}
    )

    session_id: str = Field(alias="sessionId")
    stopped: OmitIfNone[str] = None
    messages: list[QueuedMessageInfo]

    @classmethod
    def of(cls, session: Session) -> QueueResponse:
        """Return the queue of a session as a client gets it."""
        messages = [QueuedMessageInfo.of(queued) for queued in session.queue.messages]
        return cls(session_id=session.id, stopped=session.queue.stopped, messages=messages)


class QueuedResponse(WireModel):
    """The id of a message that was queued. Its turn may have begun by now."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sessionId": SESSION_ID, "id": MESSAGE_ID}]})

    session_id: str = Field(alias="sessionId")
    id: str


class EditRequest(WireModel):
    """`PATCH …/queue/:id`: the message in other words."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": USER}]})

    message: UserMessage


class OrderRequest(WireModel):
    """`PUT …/queue`: the id of each queued message once, in the order in which they are to begin."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"order": [MESSAGE_ID]}]})

    order: tuple[Annotated[str, Field(max_length=64)], ...] = Field(max_length=1000)


def router(gateway: Gateway, base: str, tag: str, session_path: str) -> APIRouter:
    """The routes under a version's path of a session, at a base URL, with this tag."""
    _, routes = version_routers(gateway, base, tag)
    queue = session_path + "/queue"

    @routes.get(queue, responses=errors(404))
    async def get_queue(caller: CurrentCaller, session_id: str) -> QueueResponse:
        """The messages that wait for their turns, and why they do not begin."""
        return QueueResponse.of(await gateway.sessions.get(caller, session_id, reading=True))

    @routes.put(queue, responses=errors(404, *BODY))
    async def reorder_queue(caller: CurrentCaller, session_id: str, request: OrderRequest) -> QueueResponse:
        """Set the order of the queued messages."""
        session = await gateway.sessions.get(caller, session_id)
        await session.queue.reorder(request.order)
        return QueueResponse.of(session)

    @routes.post(queue + "/continue", responses=errors(404))
    async def continue_queue(caller: CurrentCaller, session_id: str) -> QueueResponse:
        """Let the messages of a stopped queue begin. If it is not stopped, nothing happens."""
        session = await gateway.sessions.get(caller, session_id)
        await session.queue.go_on()
        return QueueResponse.of(session)

    @routes.patch(queue + "/{message_id}", responses=errors(404, *BODY))
    async def edit_queued(caller: CurrentCaller, session_id: str, message_id: str, request: EditRequest) -> QueuedMessageInfo:
        """Replace a queued message; it keeps its place and its settings."""
        session = await gateway.sessions.get(caller, session_id)
        check_messages(session.agent, [request.message])
        check_prompt(request.message)
        return QueuedMessageInfo.of(await session.queue.edit(message_id, request.message))

    @routes.delete(queue + "/{message_id}", status_code=204, responses=errors(404, 409))
    async def remove_queued(caller: CurrentCaller, session_id: str, message_id: str) -> Response:
        """Remove a queued message. A client that waits for its turn gets a 409."""
        session = await gateway.sessions.get(caller, session_id)
        await session.queue.remove(message_id)
        return Response(status_code=204)

    return routes
