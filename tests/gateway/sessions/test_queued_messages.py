"""Queued messages when another turn begins or fails between the end of a run and the first queued turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from drivers.contract.messages import UserMessage
from gateway.events.turn_reader import Turn
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Submission
from tests.daemon import RunningGateway
from tests.gateway.requests import create_session
from tests.gateway.sessions.test_submit import create_waiting_session
from tests.waiting import wait_until

WriteScenario = Callable[..., str]

MESSAGE = UserMessage(content="And?")
QUEUED = Submission(message=MESSAGE, when_busy="queue")
TIMEOUT = 60.0


async def last_event_kind(turn: Turn) -> str:
    async for entries in turn.batches():
        last = entries[-1].event
    return last.kind


async def test_queued_message_waits_for_the_run_of_a_message_that_cancels_pending_calls(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await create_waiting_session(portico, write_scenario)
    queued = asyncio.create_task(session.submit(QUEUED))
    await wait_until(lambda: not session.queue.empty)
    runs = portico.gateway.store.runs
    start = runs.start

    async def slow(*args: Any) -> Any:
        # The run with the pending calls is cancelled, and the next one has not begun: the queued message is woken.
        await asyncio.sleep(0.02)
        return await start(*args)

    monkeypatch.setattr(runs, "start", slow)
    first = await session.submit(Submission(message=MESSAGE))
    assert await last_event_kind(first) == "session_end"
    async with asyncio.timeout(TIMEOUT):
        second = await queued
        assert await last_event_kind(second) == "session_end"
    assert second.first > first.first


async def test_queued_message_starts_after_a_run_that_could_not_be_stored(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_scenario([{"text": "one"}], {"when": "And?", "steps": [{"text": "here"}]})
    found = await create_session(portico.client, "script", "Go", options={"scenario": name})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    storing, failing = asyncio.Event(), asyncio.Event()

    async def fails(*_: Any, **__: Any) -> None:
        storing.set()
        await failing.wait()
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(portico.gateway.store.runs, "start", fails)
        first = asyncio.create_task(session.submit(Submission(message=MESSAGE)))
        await storing.wait()
        queued = asyncio.create_task(session.submit(QUEUED))
        await wait_until(lambda: not session.queue.empty)
    failing.set()
    with pytest.raises(OSError, match="disk full"):
        await first
    async with asyncio.timeout(TIMEOUT):
        assert await last_event_kind(await queued) == "session_end"
