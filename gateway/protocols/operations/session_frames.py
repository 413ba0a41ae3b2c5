"""`GET /aap/v3/sessions/ID/frames`: a turn as the clients of each protocol get it, by the views that serve them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict
from pydantic_core import to_json

from gateway.app import Gateway
from gateway.errors import BadRequest
from gateway.events.event_log import Entry
from gateway.events.log_entries import Steered, TurnStart
from gateway.events.turn_reader import LAST
from gateway.protocols.aap.schema import OmitIfNone, WireModel
from gateway.protocols.aap.turn_frames import JsonView, StreamView
from gateway.protocols.aap.v3 import BASE, SESSION
from gateway.protocols.authenticated_routes import CurrentCaller, authenticated_router
from gateway.protocols.execute import event_json
from gateway.protocols.model_apis.past_turn import stream_of_turn
from gateway.protocols.route_metadata import errors
from gateway.sessions.session import Session

MAX_EVENTS = 4 * 1024 * 1024
"""Bytes of the events of a turn, as JSON, that are converted; the frames of later ones are left out."""

ProtocolName = Literal[
    "aap-delta", "aap-message", "aap-none", "acp", "execute", "openai-chat", "openai-responses", "anthropic-messages"
]


class Frame(WireModel):
    """A server-sent event, or a message. `data` is its JSON, or its text where that is not JSON, such as `[DONE]`."""

    id: OmitIfNone[str] = None
    event: OmitIfNone[str] = None
    data: Any


class FramesResponse(WireModel):
    """The frames of a turn. `truncated`: the turn is longer, and the frames of its later events are left out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "frames": [
                        {"id": "1", "event": "turn_start", "data": {}},
                        {"id": "2", "event": "text_delta", "data": {"delta": "4"}},
                        {"id": "3", "event": "turn_stop", "data": {"stopReason": "end_turn"}},
                    ],
                    "truncated": False,
                }
            ]
        }
    )

    frames: list[Frame]
    truncated: bool


TurnQuery = Annotated[int, Query(ge=1, lt=2**62, description="The number of the event with which the turn begins.")]
ProtocolQuery = Annotated[ProtocolName, Query(description="Whose clients.")]


def router(gateway: Gateway) -> APIRouter:
    """Return the route of a gateway."""
    routes = authenticated_router(gateway, "AAP v3", prefix=BASE)

    @routes.get(SESSION + "/frames", responses=errors(404))
    async def get_frames(caller: CurrentCaller, session_id: str, turn: TurnQuery, protocol: ProtocolQuery) -> FramesResponse:
        """A turn as a client of a protocol gets it, whichever protocol it began over. A turn at work has frames so far."""
        session = await gateway.sessions.get(caller, session_id, reading=True)
        entries, truncated = await _turn(session, turn)
        return FramesResponse(frames=await _frames(gateway, session, protocol, entries), truncated=truncated)

    return routes


async def _turn(session: Session, first: int) -> tuple[list[Entry], bool]:
    """The events of the turn that begins with this event, and whether there are more. Raises BadRequest."""
    found: list[Entry] = []
    size = 0
    async for entries in _read(session, first - 1, session.log.last):
        if not found and (entries[0].seq != first or not isinstance(entries[0].event, TurnStart | Steered)):
            break
        for entry in entries:
            found.append(entry)
            size += len(entry.data)
            if type(entry.event) in LAST:
                return found, False
            if size >= MAX_EVENTS:
                return found, entry.seq < session.log.last
    if not found:
        raise BadRequest(f"turn: no turn begins with event {first}; take the number of a `turn_start` of the session's log")
    return found, False


async def _read(session: Session, after: int, last: int) -> AsyncIterator[Sequence[Entry]]:
    """The events after a number up to another, as far as there are any."""
    while after < last:
        entries = [entry for entry in await session.log.read(after) if entry.seq <= last]
        if not entries:
            return
        after = entries[-1].seq
        yield entries


async def _frames(gateway: Gateway, session: Session, protocol: ProtocolName, turn: Sequence[Entry]) -> list[Frame]:
    first = turn[0].seq
    errors_as_text = gateway.settings.server.errors_as_text
    match protocol:
        case "aap-delta" | "aap-message":
            return _events(StreamView(whole=protocol == "aap-message", errors_as_text=errors_as_text).feed(turn))
        case "aap-none":
            view = JsonView(errors_as_text=errors_as_text)
            view.feed(turn)
            is_over = type(turn[-1].event) in LAST
            return [Frame(data=json.loads(to_json(view.response(), by_alias=True)))] if is_over else []
        case "execute":
            sent = [(entry.seq, event_json(entry.event, entry.data)) for entry in turn]
            return [Frame(id=str(seq), data=json.loads(data)) for seq, data in sent if data is not None]
        case "acp":
            # The package `acp`: 0.5 s and 24 MB, unless a client of ACP is or was connected.
            from gateway.protocols.acp.past_turn import messages_of_turn

            # What a client is sent depends on all of the run.
            before = _read(session, await gateway.store.runs.first_seq(session.id, first) - 1, first - 1)
            return [Frame(data=message) for message in await messages_of_turn(gateway, session, before, turn)]
        case _:
            tools, show_tools = session.config.app_tools or (), gateway.settings.openai.show_tools
            return _events(stream_of_turn(protocol, session.agent.name, tools, show_tools, turn, first, session.created_at))


def _events(stream: bytes) -> list[Frame]:
    """The server-sent events of a stream without comments."""
    return [_event(block) for block in stream.decode().split("\n\n") if block]


def _event(block: str) -> Frame:
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    data: Any = fields["data"]
    if data != "[DONE]":
        data = json.loads(data)
    return Frame(id=fields.get("id"), event=fields.get("event"), data=data)
