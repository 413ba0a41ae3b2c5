"""The sending of an event stream: keep-alive comments, disconnects, failures and cancelled requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message, Receive, Scope

from drivers.runtime.clock import SYSTEM_CLOCK
from gateway.protocols.sse import KEEP_ALIVE, event_stream
from tests.support.manual_clock import ManualClock

SCOPE: Scope = {"type": "http", "method": "GET"}
BIG = b"data: more than the client reads\n\n"
INTERVAL = 15.0


class Server:
    """The server's side of a response, with the rules of uvicorn: it writes no more while the client does not read."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.started = self.complete = False
        self.readable, self.disconnected = asyncio.Event(), asyncio.Event()
        self.readable.set()

    async def send(self, message: Message) -> None:
        await self.readable.wait()
        if self.complete or self.started == (message["type"] == "http.response.start"):
            raise RuntimeError(f"{message['type']} is not allowed here")
        self.started = True
        if message["type"] == "http.response.body":
            self.sent.append(message["body"])
            self.complete = not message["more_body"]
            if message["body"] == BIG:
                self.readable.clear()

    async def receive(self) -> Message:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}


async def test_keep_alive_comments_are_sent_while_there_is_no_chunk(clock: ManualClock) -> None:
    server, go_on = Server(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"a"
        await go_on.wait()
        yield b"b"

    response = asyncio.create_task(event_stream(chunks(), INTERVAL, clock=clock)(SCOPE, server.receive, server.send))
    for _ in range(3):
        await clock.expire(INTERVAL)
    go_on.set()
    await response
    assert server.sent == [b"a", KEEP_ALIVE, KEEP_ALIVE, KEEP_ALIVE, b"b", b""]


async def test_a_client_that_reads_the_last_chunk_late_gets_no_comment_behind_the_end(clock: ManualClock) -> None:
    server = Server()

    async def chunks() -> AsyncIterator[bytes]:
        yield BIG

    response = asyncio.create_task(event_stream(chunks(), INTERVAL, clock=clock)(SCOPE, server.receive, server.send))
    await clock.expire(INTERVAL)
    server.readable.set()
    await response
    assert server.sent == [BIG, b""]


@pytest.mark.parametrize("comments", [True, False], ids=["with comments", "before the first comment"])
@pytest.mark.parametrize("end", ["disconnect", "cancel"])
async def test_the_generator_of_the_chunks_does_all_that_it_does_at_its_end(end: str, comments: bool, clock: ManualClock) -> None:
    server, waiting, ended = Server(), asyncio.Event(), False

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal ended
        try:
            yield b"a"
            waiting.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended = True

    response = asyncio.create_task(event_stream(chunks(), INTERVAL, clock=clock)(SCOPE, server.receive, server.send))
    await waiting.wait()
    if comments:
        await clock.expire(INTERVAL)
    if end == "cancel":
        response.cancel()
    else:
        server.disconnected.set()
    await asyncio.wait([response], timeout=60)
    assert ended and response.cancelled() == (end == "cancel")


async def test_a_failure_is_raised_although_the_client_does_not_read(clock: ManualClock) -> None:
    server, fail = Server(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield BIG[:-1]
        server.readable.clear()
        await fail.wait()
        raise ValueError("in the middle")

    response = asyncio.create_task(event_stream(chunks(), INTERVAL, clock=clock)(SCOPE, server.receive, server.send))
    await clock.expire(INTERVAL)
    fail.set()
    with pytest.raises(ValueError, match="in the middle"):
        await asyncio.wait_for(response, 60)


async def test_a_failure_to_receive_is_raised() -> None:
    server = Server()

    async def chunks() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def receive() -> Message:
        raise ValueError("the body is too large")

    fails: Receive = receive
    with pytest.raises(ValueError, match="too large"):
        await event_stream(chunks(), 60.0, clock=SYSTEM_CLOCK)(SCOPE, fails, server.send)


async def test_the_end_of_a_response_is_reported_also_if_no_chunk_was_asked_for() -> None:
    server, begun, closed = Server(), False, []

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal begun
        begun = True
        yield b"a"

    server.disconnected.set()
    server.readable.clear()
    await event_stream(chunks(), 60.0, clock=SYSTEM_CLOCK, closed=lambda: closed.append(True))(SCOPE, server.receive, server.send)
    assert (server.sent, begun, closed) == ([], False, [True])
    server = Server()
    await event_stream(chunks(), 60.0, clock=SYSTEM_CLOCK, closed=lambda: closed.append(True))(SCOPE, server.receive, server.send)
    assert (server.sent, begun, closed) == ([b"a", b""], True, [True, True])
