"""Turns on both sides, and the proof that their events came complete and in order."""

from __future__ import annotations

import json

from benchmarks.client import Answer, Connection

DELTA = b"event: text_delta\n"
LINE = b'"kind":"agent_token"'


class Broken(Exception):
    """Events are missing, doubled or out of order."""


async def new_session(to: Connection, agent: str, text: str = "hello") -> str:
    """Make a session whose agent has answered once; its id."""
    body = {"agent": {"name": agent}, "messages": [{"role": "user", "content": text}]}
    answer = await to.ask("PUT", "/session", body)
    return str(json.loads(answer.body)["sessionId"])


def message(text: str) -> dict[str, object]:
    """The body of a streamed turn."""
    return {"stream": "delta", "messages": [{"role": "user", "content": text}]}


async def turn(to: Connection, session: str, text: str) -> Answer:
    """A turn in delta mode over AAP v1."""
    return await to.ask("POST", f"/session/{session}", message(text), look_for=DELTA)


async def first_turn(to: Connection, agent: str, text: str) -> Answer:
    """The same for a session that is made by it, so with the start of its agent."""
    return await to.ask("PUT", "/session", {"agent": {"name": agent}, **message(text)}, look_for=DELTA)


async def floor_turn(to: Connection, text: str, fresh: bool = False) -> Answer:
    """A turn of the floor."""
    return await to.ask("POST", "/turn", {"prompt": text, "fresh": fresh}, look_for=b"agent_token")


def check(body: bytes, count: int) -> int:
    """The number of events in a stream of the gateway. Raises Broken unless they are 0..count-1 in order, then the end."""
    frames = body.split(b"\n\n")
    deltas = [json.loads(frame.split(b"data: ", 1)[1].split(b"\n", 1)[0])["delta"] for frame in frames if frame.startswith(DELTA)]
    _check_order(deltas, count)
    if b'"stopReason":"end_turn"' not in frames[-2]:
        raise Broken(f"the last frame is {frames[-2]!r}")
    return body.count(DELTA)


def check_floor(body: bytes, count: int) -> int:
    """The same for the floor."""
    lines = [json.loads(frame.removeprefix(b"data: ")) for frame in body.split(b"\n\n") if LINE in frame]
    _check_order([line["text"] for line in lines], count)
    return body.count(LINE)


def _check_order(texts: list[str], count: int) -> None:
    if texts != [f"event {n} " for n in range(count)]:
        wrong = next((n for n, text in enumerate(texts) if text != f"event {n} "), len(texts))
        raise Broken(f"{len(texts)} events instead of {count}, the first wrong one is number {wrong}")
