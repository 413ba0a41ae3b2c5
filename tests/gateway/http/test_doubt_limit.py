"""Requests while the store does not say whether writes are stored: those without a response are refused, and no others."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from gateway.http.doubt_limit import DOUBT_TIMEOUT, DoubtLimit, UnansweredRequests
from tests.support.manual_clock import ManualClock


class Exchange:
    """A request, and what its client gets. The response begins and ends when a test says so."""

    def __init__(self, unanswered: UnansweredRequests, kind: str = "http") -> None:
        self.begins, self.ends = asyncio.Event(), asyncio.Event()
        self.got: list[Any] = []
        limit = DoubtLimit(self._respond, lambda: unanswered)
        self.handled = asyncio.create_task(limit({"type": kind}, self._receive, self._send))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.begins.wait()
        await send({"type": "http.response.start", "status": 200})
        await self.ends.wait()
        await send({"type": "http.response.body", "body": b"done"})

    async def _receive(self) -> Message:
        raise AssertionError("nothing is read")

    async def _send(self, message: Message) -> None:
        self.got.append(message.get("status", message.get("body")))


async def test_only_requests_without_a_response_are_refused(clock: ManualClock) -> None:
    unanswered = UnansweredRequests(clock, lambda: True)
    begun, waiting, socket = Exchange(unanswered), Exchange(unanswered), Exchange(unanswered, "websocket")
    begun.begins.set()
    await asyncio.sleep(0)
    unanswered.doubt_began()
    await clock.expire(DOUBT_TIMEOUT)
    late = Exchange(unanswered)
    assert (begun.got, waiting.got[0], len(waiting.got), socket.got) == ([200], 503, 2, [])
    await clock.expire(DOUBT_TIMEOUT)
    assert (begun.got, late.got[0], len(waiting.got), len(unanswered)) == ([200], 503, 2, 0)
    for one in (begun, waiting, socket, late):
        one.begins.set()
        one.ends.set()
        await one.handled
    # What a handler sends after the refusal is dropped.
    assert (begun.got, socket.got, len(waiting.got), len(late.got)) == ([200, b"done"], [200, b"done"], 2, 2)


async def test_no_request_is_refused_once_the_store_has_answered(clock: ManualClock) -> None:
    doubts = [True]
    unanswered = UnansweredRequests(clock, lambda: bool(doubts))
    waiting = Exchange(unanswered)
    unanswered.doubt_began()
    await clock.waited_for(DOUBT_TIMEOUT)
    doubts.clear()
    await clock.advance(DOUBT_TIMEOUT)
    assert (waiting.got, clock.waiting, len(unanswered)) == ([], 0, 1)
    waiting.handled.cancel()
    await asyncio.wait([waiting.handled])
    assert len(unanswered) == 0
