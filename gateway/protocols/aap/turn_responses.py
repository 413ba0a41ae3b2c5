"""One exchange of AAP, of any version: the headers of a request for a turn, its idempotency key, and its response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from drivers.contract.messages import MESSAGE
from gateway.app import Gateway
from gateway.events.turn_reader import Turn
from gateway.protocols.aap.message_queue import QueuedResponse
from gateway.protocols.aap.schema import SESSION_ID, AgentResponse, CreateSessionRequest, Tool, TurnFields, TurnRequest, WireModel
from gateway.protocols.aap.sessions import create_and_submit
from gateway.protocols.aap.turn_frames import EVENTS, JsonView, Position, StreamView, frame
from gateway.protocols.aap.turns import submission
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.client_connection import ClientConnection
from gateway.protocols.route_metadata import stream_response
from gateway.protocols.sse import event_stream
from gateway.runs.idempotency import IdempotencyKey
from gateway.security.authentication import Caller
from gateway.security.quotas import RequestQuotas
from gateway.sessions.message_queue import id_of_key
from gateway.sessions.session import Session, never
from gateway.store import KeyRecord

MAX_KEPT = 8 * 1024 * 1024
"""Bytes of events, as JSON, of a turn whose JSON answer is kept in memory until the turn is over."""
Started = tuple[Session, Turn]
_STREAMS = """With `stream` of `delta` or `message`: server-sent events, each with a name and JSON data. The first is
`turn_start`, the last `turn_stop`, with the reason of an `error` in `x-portico`; before a new session's first turn stands
`session_start`. Lines that begin with a colon only keep the connection open."""
_TURN = """event: turn_start
data: {}
id: 1

event: text_delta
data: {"delta":"4"}
id: 2

event: turn_stop
data: {"stopReason":"end_turn"}
id: 4

"""
TURN_STREAM = stream_response(_STREAMS, _TURN, EVENTS)
NEW_SESSION_STREAM = stream_response(
    _STREAMS, f'event: session_start\ndata: {{"sessionId":"{SESSION_ID}"}}\nid: 0\n\n{_TURN}', EVENTS
)


class Exchange:
    """The headers of a request for a turn."""

    def __init__(self, http: Request, caller: Caller, quotas: RequestQuotas, key: str | None, seen: Position | None) -> None:
        self._connection, self._caller, self._quotas, self._key, self._seen = ClientConnection(http), caller, quotas, key, seen

    def idempotency_key(self, operation: str, request: WireModel) -> IdempotencyKey | None:
        """The request's key, if it has one; keys of other callers and operations are other keys, whatever their text."""
        if self._key is None:
            return None
        return IdempotencyKey.of(self._caller.name, operation, self._key, request.model_dump(mode="json"))

    async def create(self, gateway: Gateway, request: CreateSessionRequest) -> Response:
        """Make a session and answer its last user message."""
        self._take_stream(request)
        key, caller = self.idempotency_key("create", request), self._caller

        async def start() -> Started:
            return await create_and_submit(
                gateway,
                caller,
                request.agent,
                request.tools,
                request.messages,
                key,
                self._connection.disconnected,
                output_schema=request.output_schema,
                cancel_on_disconnect=_cancels_on_disconnect(gateway, request),
            )

        return await self._respond(gateway, await self._once(gateway, key, start), request, created=True, status=201)

    async def turn(self, gateway: Gateway, session_id: str, request: TurnRequest, tools: Sequence[Tool] | None) -> Response:
        """Start or continue a session's run."""
        self._take_stream(request)
        session = await gateway.sessions.get(self._caller, session_id)
        key = self.idempotency_key(f"turn {session.id}", request)

        async def start() -> Started:
            cancels = _cancels_on_disconnect(gateway, request)
            message = await submission(
                gateway.agents,
                session,
                request,
                tools,
                key,
                self._connection.disconnected,
                cancel_on_disconnect=cancels,
                any_folder=self._caller.any_folder,
            )
            return session, await session.submit(message)

        return await self._respond(gateway, await self._once(gateway, key, start), request)

    async def queue(
        self, gateway: Gateway, session_id: str, request: TurnRequest, tools: Sequence[Tool] | None
    ) -> QueuedResponse:
        """Put a user message in a session's queue."""
        session = await gateway.sessions.get(self._caller, session_id)
        key = self.idempotency_key(f"queue {session.id}", request)

        async def start() -> QueuedResponse:
            any_folder, stays = self._caller.any_folder, False
            message = await submission(
                gateway.agents, session, request, tools, key, never, cancel_on_disconnect=stays, any_folder=any_folder
            )
            return QueuedResponse(session_id=session.id, id=(await session.enqueue(message)).id)

        async def again(known: KeyRecord) -> QueuedResponse:
            return QueuedResponse(session_id=known.log_id, id=id_of_key(known.key))

        return await gateway.idempotency.once(key, start, again)

    def _take_stream(self, request: TurnFields) -> None:
        if request.stream != "none":
            self._quotas.take_stream()

    async def _once(self, gateway: Gateway, key: IdempotencyKey | None, start: Callable[[], Awaitable[Started]]) -> Started:
        """The turn that `start` begins, or the one that an earlier request began under the same key."""

        async def again(known: KeyRecord) -> Started:
            session = await gateway.sessions.get(self._caller, known.log_id)
            return session, session.turn_from(known.first_seq)

        return await gateway.idempotency.once(key, start, again)

    async def _respond(
        self, gateway: Gateway, started: Started, request: TurnFields, *, created: bool = False, status: int = 200
    ) -> Response:
        """The turn as a response: an SSE stream, or (mode `none`) JSON once it is over. `created`: the session is new."""
        session, turn = started
        cancels = _cancels_on_disconnect(gateway, request)
        dropped = (lambda: gateway.sessions.cancel_soon(session, turn)) if cancels else None
        errors_as_text = gateway.settings.server.errors_as_text
        if request.stream != "none":
            view = StreamView(whole=request.stream == "message", seen=self._seen, errors_as_text=errors_as_text)
            first = frame("session_start", {"sessionId": session.id}, "0") if created and self._seen is None else b""
            stream = _Stream(turn, view, dropped)
            return event_stream(stream.frames(first), gateway.keep_alive, closed=stream.closed, clock=gateway.clock)
        answer = _json(turn, session.id if created else None, errors_as_text=errors_as_text)
        response = await self._connection.wait_for(answer, dropped)
        response.status_code = status
        return response


KeyHeader = Annotated[str | None, Header(min_length=1, max_length=1024, description="The same key again does not run it twice.")]
SeenHeader = Annotated[str | None, Header(description="With Idempotency-Key: the stream goes on behind this event.")]


async def _exchange(
    http: Request,
    caller: CurrentCaller,
    idempotency_key: KeyHeader = None,
    last_event_id: SeenHeader = None,
) -> Exchange:
    # Async like the caller's (protocols/authenticated_routes.py), for the same reason.
    # The quotas are not a dependency: FastAPI takes 0.05 ms for each.
    seen = Position.parse(last_event_id) if last_event_id and idempotency_key else None
    return Exchange(http, caller, http.state.quotas, idempotency_key, seen)


ExchangeOf = Annotated[Exchange, Depends(_exchange)]


def _cancels_on_disconnect(gateway: Gateway, request: TurnFields) -> bool:
    return (request.on_disconnect or gateway.settings.server.on_disconnect) == "cancel"


async def _json(turn: Turn, created: str | None, *, errors_as_text: bool) -> Response:
    """The answer once the turn is over. A long one is not kept: it is made a second time from the log while it is sent."""
    view, size = JsonView(errors_as_text=errors_as_text), 0
    async for entries in turn.batches():
        view.feed(entries)
        size += sum(len(entry.data) for entry in entries)
        if size > MAX_KEPT:
            view.take()
    if size <= MAX_KEPT:
        return Response(to_json(view.response(created), by_alias=True), media_type="application/json")
    chunks = _json_chunks(turn, view.response(created), JsonView(errors_as_text=errors_as_text))
    return StreamingResponse(chunks, media_type="application/json")


async def _json_chunks(turn: Turn, without_messages: AgentResponse, view: JsonView) -> AsyncIterator[bytes]:
    before, empty, after = to_json(without_messages, by_alias=True).partition(b'"messages":[]')
    yield before + empty[:-1]
    separator = b""
    async for entries in turn.batches():
        view.feed(entries)
        parts: list[bytes] = []
        for message in view.take():
            parts += (separator, MESSAGE.dump_json(message))
            separator = b","
        if parts:
            yield b"".join(parts)
    yield b"]" + after


class _Stream:
    """The frames of a turn. `dropped` is called if the client disconnects before their end."""

    def __init__(self, turn: Turn, view: StreamView, dropped: Callable[[], None] | None) -> None:
        self._turn, self._view, self._dropped = turn, view, dropped
        self._over = False

    async def frames(self, first: bytes) -> AsyncIterator[bytes]:
        async for entries in self._turn.batches():
            if frames := first + self._view.feed(entries):
                yield frames
                first = b""
        self._over = True

    def closed(self) -> None:
        """The response has ended."""
        if not self._over and self._dropped is not None:
            self._dropped()
