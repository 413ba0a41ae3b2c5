"""Turns of the gateway and of the floor, and checks that their events are complete and in order."""

from __future__ import annotations

import json

from benchmarks.client import Connection, Response

DELTA = b"event: text_delta\n"
LINE = b'"kind":"agent_token"'


class InvalidEvents(Exception):
    """Events are missing, duplicated or out of order."""


async def new_session(to: Connection, agent: str, text: str = "hello") -> str:
    """Create a session, run one turn and return the session id."""
    body = {"agent": {"name": agent}, "messages": [{"role": "user", "content": text}]}
    answer = await to.request("PUT", "/session", body)
    return str(json.loads(answer.body)["sessionId"])


def message(text: str) -> dict[str, object]:
    """Return the body of a streamed turn."""
    return {"stream": "delta", "messages": [{"role": "user", "content": text}]}


async def turn(to: Connection, session: str, text: str) -> Response:
    """Run a turn in delta mode over AAP v1."""
    return await to.request("POST", f"/session/{session}", message(text), look_for=DELTA)


async def first_turn(to: Connection, agent: str, text: str) -> Response:
    """Create a session and run its first turn in delta mode, which includes the start of the agent."""
    return await to.request("PUT", "/session", {"agent": {"name": agent}, **message(text)}, look_for=DELTA)


def session_of(answer: Response) -> str:
    """Return the id of the session that `first_turn` has created."""
    frame = answer.body.split(b"\n\n", 1)[0]
    return str(json.loads(frame.split(b"data: ", 1)[1].split(b"\n", 1)[0])["sessionId"])


async def floor_turn(to: Connection, text: str, fresh: bool = False) -> Response:
    """Run a turn of the floor."""
    return await to.request("POST", "/turn", {"prompt": text, "fresh": fresh}, look_for=b"agent_token")


def check(body: bytes, count: int) -> int:
    """Return the number of events in a stream of the gateway. Raises InvalidEvents unless they are 0..count-1 and the end."""
    frames = body.split(b"\n\n")
    deltas = [json.loads(frame.split(b"data: ", 1)[1].split(b"\n", 1)[0])["delta"] for frame in frames if frame.startswith(DELTA)]
    _check_order(deltas, count)
    if b'"stopReason":"end_turn"' not in frames[-2]:
        raise InvalidEvents(f"the last frame is {frames[-2]!r}")
    return body.count(DELTA)


def check_floor(body: bytes, count: int) -> int:
    """Return the number of events in a stream of the floor. Raises InvalidEvents unless they are 0..count-1 in order."""
    lines = [json.loads(frame.removeprefix(b"data: ")) for frame in body.split(b"\n\n") if LINE in frame]
    _check_order([line["text"] for line in lines], count)
    return body.count(LINE)


def _check_order(texts: list[str], count: int) -> None:
    if texts != [f"event {n} " for n in range(count)]:
        wrong = next((n for n, text in enumerate(texts) if text != f"event {n} "), len(texts))
        raise InvalidEvents(f"{len(texts)} events instead of {count}, the first wrong one is number {wrong}")
