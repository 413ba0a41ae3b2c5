"""What AAP does not have: cancelling a run, following a session's events, and its queue. The same for every version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response

from gateway.app import Gateway
from gateway.errors import BadRequest
from gateway.events.event_log import Entry
from gateway.events.turn_reader import LAST
from gateway.protocols.aap import message_queue
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import CancelResponse
from gateway.protocols.aap.turn_frames import EVENTS, EVENTS_OF_OTHERS, Position, StreamView
from gateway.protocols.authenticated_routes import CurrentCaller, CurrentQuotas
from gateway.protocols.route_metadata import errors, stream_response
from gateway.protocols.sse import event_stream
from gateway.sessions.session import Session

AfterQuery = Annotated[str | None, Query(description="The id of the last event that was seen; 0 for all there are.")]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="The same; it wins over `after`.")]
ModeQuery = Annotated[Literal["delta", "message"], Query(description="Which of the protocol's stream modes.")]
UntilQuery = Annotated[Literal["turn_stop"] | None, Query(description="End the stream behind the next turn_stop.")]
STREAM = stream_response(
    """Server-sent events: those of the session's turns, each with its `id`, and the messages of clients. Lines that
begin with a colon only keep the connection open.""",
    'event: client_message\ndata: {"role":"user","content":"2 + 2?"}\nid: 1.1\n\nevent: turn_start\ndata: {}\nid: 1\n\n',
    {**{name: data for name, data in EVENTS.items() if name != "session_start"}, **EVENTS_OF_OTHERS},
)


def router(gateway: Gateway, base: str, tag: str, session_path: str) -> APIRouter:
    """The routes under a version's path of a session, such as `/session/{session_id}`, at a base URL, with this tag."""
    _, routes = version_routers(gateway, base, tag)

    @routes.post(session_path + "/cancel", responses=errors(404))
    async def cancel(caller: CurrentCaller, session_id: str) -> CancelResponse:
        """Stop the run, and cancel the calls that wait for the client: the session is idle then. If it was, nothing happens."""
        session = await gateway.sessions.get(caller, session_id)
        cancelled = await session.cancel()
        return CancelResponse(session_id=session.id, cancelled=cancelled, state=session.state)

    @routes.get(session_path + "/events", response_class=Response, responses={**errors(404), 200: STREAM})
    async def events(
        caller: CurrentCaller,
        quotas: CurrentQuotas,
        session_id: str,
        after: AfterQuery = None,
        last_event_id: LastEventId = None,
        stream: ModeQuery = "delta",
        until: UntilQuery = None,
    ) -> Response:
        """Follow a session's events over all its turns. Without a number: the turn under way from its start, then what comes."""
        quotas.take_stream()
        session = await gateway.sessions.get(caller, session_id, reading=True)
        seen = _position(session, last_event_id or after)
        view = StreamView(
            whole=stream == "message", seen=seen, others=True, errors_as_text=gateway.settings.server.errors_as_text
        )
        start = await _start(gateway, session, seen)
        return event_stream(_follow(session, view, start, until=until is not None), gateway.keep_alive, clock=gateway.clock)

    routes.routes += message_queue.router(gateway, base, tag, session_path).routes
    return routes


def _position(session: Session, text: str | None) -> Position:
    if text is None:
        return Position(session.turn_began - 1 if session.busy else session.log.last)
    seen = Position.parse(text)
    if seen.seq > session.log.last:
        raise BadRequest(f"this session has no event {seen.seq}, its last is {session.log.last}; begin again without a number")
    return seen


async def _start(gateway: Gateway, session: Session, seen: Position) -> int:
    """Returns the number of the first event that the view must be fed with for what comes after a position."""
    if session.state == "idle" and seen == Position(session.log.last):
        # What comes next begins a run.
        return seen.seq + 1
    # The content of a frame may depend on all of its run.
    return await gateway.store.runs.first_seq(session.id, seen.seq)


async def _follow(session: Session, view: StreamView, start: int, *, until: bool) -> AsyncIterator[bytes]:
    """The view's frames of everything from a run's first event on. It holds the session, and with it its log."""
    log, after = session.log, start - 1
    while not (until and after >= log.last and not session.busy):
        entries = await log.read(after)
        if not entries:
            return
        after = entries[-1].seq
        frames = b""
        for turn in _by_turns(entries) if until else [entries]:
            frames += view.feed(turn)
            if until and view.stopped:
                break
        if frames:
            yield frames
        if until and view.stopped:
            return


def _by_turns(entries: Iterable[Entry]) -> Iterable[list[Entry]]:
    part: list[Entry] = []
    for entry in entries:
        part.append(entry)
        if type(entry.event) in LAST:
            yield part
            part = []
    yield part
