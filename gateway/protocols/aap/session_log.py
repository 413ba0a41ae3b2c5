"""The event log of a session over HTTP: live as server-sent events, and in pages. Each event is the JSON that is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import ConfigDict, Field
from pydantic_core import to_json

from gateway.app import Gateway
from gateway.errors import BadRequest
from gateway.events.log_pages import Line, gap, page_after, page_before
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import OmitIfNone, StopReason, WireModel, iso_time
from gateway.protocols.aap.stop_reasons import STOP_REASONS
from gateway.protocols.authenticated_routes import CurrentCaller, CurrentQuotas
from gateway.protocols.route_metadata import errors, stream_response
from gateway.protocols.sse import event_stream
from gateway.sessions.session import Session
from gateway.store import RunTimes

MAX_SEQ = 2**62
PAGE_EVENTS = 500
Number = Annotated[int | None, Query(ge=0, le=MAX_SEQ)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="As `after`, which it precedes. Streams only.")]
LimitQuery = Annotated[int, Query(ge=1, le=5000, description="About how many events a page has.")]
MergeQuery = Annotated[bool, Query(description="Successive deltas of one kind are one event. Pages only.")]
STREAM = stream_response(
    """With `Accept: text/event-stream`: every event after a number, without an end. `event: deleted` is the last one if the
session is deleted. Lines that begin with a colon only keep the connection open.""",
    'id: 2\ndata: {"kind":"agent_token","text":"4"}\n\n',
    {
        "": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
        "deleted": {"type": "object", "properties": {"sessionId": {"type": "string"}}},
    },
)


class LogEventInfo(WireModel):
    """An event of the log as it is stored; `kind` tells its other fields."""

    id: int
    event: dict[str, Any]


class RunInfo(WireModel):
    """A run that events of a page belong to. Times are ISO 8601; one that works or waits has no end."""

    id: str
    first_seq: int = Field(alias="firstSeq")
    started_at: str = Field(alias="startedAt")
    ended_at: OmitIfNone[str] = Field(default=None, alias="endedAt")
    state: Literal["running", "waiting", "ended"]
    stop_reason: OmitIfNone[StopReason] = Field(default=None, alias="stopReason")

    @classmethod
    def of(cls, run: RunTimes) -> RunInfo:
        """Return a stored run."""
        return cls.model_validate(
            {
                "id": run.id,
                "first_seq": run.first_seq,
                "started_at": iso_time(run.started_at),
                "ended_at": None if run.ended_at is None else iso_time(run.ended_at),
                "state": run.state,
                "stop_reason": STOP_REASONS.get(run.stop_reason or ""),
            }
        )


class LogPageResponse(WireModel):
    """A page of a log. `first` and `last` are the numbers that it covers; `more`: there are others in its direction.

    `runs` are those of its events, `seeds` is how many stored messages came before the first event of the log.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "events": [
                        {
                            "id": 1,
                            "event": {
                                "kind": "turn_start",
                                "messages": [{"role": "user", "content": "What is 2 + 2?"}],
                                "permissions": [],
                            },
                        },
                        {"id": 2, "event": {"kind": "agent_token", "text": "4"}},
                        {"id": 3, "event": {"kind": "message_end", "discarded": False}},
                        {
                            "id": 4,
                            "event": {"kind": "session_end", "exit_code": 0, "duration_ms": 812, "stop_reason": "end_turn"},
                        },
                    ],
                    "first": 1,
                    "last": 4,
                    "more": False,
                    "runs": [
                        {
                            "id": "run_5d2b1c9e2a7b4d5e8f90123456789abc",
                            "firstSeq": 1,
                            "startedAt": "2026-11-20T09:30:03.310Z",
                            "endedAt": "2026-11-20T09:30:04.125Z",
                            "state": "ended",
                            "stopReason": "end_turn",
                        }
                    ],
                    "seeds": 0,
                }
            ]
        }
    )

    events: list[LogEventInfo]
    first: int
    last: int
    more: bool
    runs: list[RunInfo]
    seeds: int


def router(gateway: Gateway, base: str, tag: str, session_path: str) -> APIRouter:
    """The routes under the path of a session, at a base URL, with this tag."""
    _, routes = version_routers(gateway, base, tag)

    @routes.get(session_path + "/log", response_model=LogPageResponse, responses={**errors(404), 200: STREAM})
    async def log(
        http: Request,
        caller: CurrentCaller,
        quotas: CurrentQuotas,
        session_id: str,
        before: Number = None,
        after: Number = None,
        limit: LimitQuery = PAGE_EVENTS,
        merge: MergeQuery = False,
        last_event_id: LastEventId = None,
    ) -> Response:
        """The event log of a session: as server-sent events where `Accept` asks for them, otherwise a page of it."""
        if "text/event-stream" in http.headers.get("accept", ""):
            if before is not None:
                raise BadRequest("before: a stream goes forward; leave it out, or ask for a page (Accept: application/json)")
            quotas.take_stream()
            session = await gateway.sessions.get(caller, session_id, reading=True)
            start = _start(session, _number(last_event_id) if last_event_id else after)
            return event_stream(_follow(session, start), gateway.keep_alive, clock=gateway.clock)
        if before is not None and after is not None:
            raise BadRequest("before and after: a page has one direction; leave one of them out")
        session = await gateway.sessions.get(caller, session_id, reading=True)
        return await _page(gateway, session, before, after, limit, merge=merge)

    return routes


def _number(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    raise BadRequest(f"Last-Event-ID: {text[:64]!r} is not the number of an event; pass the last one that you saw, unchanged")


def _start(session: Session, after: int | None) -> int:
    last = session.log.last
    if after is not None and after > session.log.last:
        raise BadRequest(f"this session has no event {after}, its last is {last}; begin again without a number")
    return last if after is None else after


async def _follow(session: Session, after: int) -> AsyncIterator[bytes]:
    """The frames of all events after a number. It holds the session, and with it its log."""
    while entries := await session.log.read(after):
        frames: list[bytes] = []
        for seq, _, data in entries:
            if seq > after + 1:
                frames.append(_frame(seq - 1, gap(after + 1, seq - 1)))
            frames.append(_frame(seq, data))
            after = seq
        yield b"".join(frames)
    if session.deleted or session.log.deleted:
        yield b"event: deleted\ndata: %b\n\n" % to_json({"sessionId": session.id})


def _frame(seq: int, data: bytes) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (seq, data)


async def _page(
    gateway: Gateway, session: Session, before: int | None, after: int | None, limit: int, *, merge: bool
) -> Response:
    store = gateway.store
    end = session.log.stored + 1
    if after is not None:
        page = await page_after(store, session.id, min(after, end - 1), limit, merge=merge)
    else:
        page = await page_before(store, session.id, end if before is None else min(before, end), limit, merge=merge)
    runs = await store.runs.between(session.id, page.first, page.last) if page.events else []
    about = {
        "first": page.first,
        "last": page.last,
        "more": page.more,
        "runs": [RunInfo.of(run) for run in runs],
        "seeds": await store.messages.count_seeds(session.id),
    }
    return Response(_json(page.events, to_json(about, by_alias=True)), media_type="application/json")


def _json(events: Sequence[Line], about: bytes) -> bytes:
    lines = b",".join([b'{"id":%d,"event":%b}' % line for line in events])
    return b'{"events":[%b],%b' % (lines, about[1:])
