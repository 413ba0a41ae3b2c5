"""A daemon that is stopped while a turn is being stored: the store has the turn and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from drivers.contract.events import Error, SessionEnd
from gateway.events.log_entries import TurnStart, decode
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Submission
from tests.gateway.sessions.test_submit import HELLO
from tests.support.daemon import RunningGateway
from tests.support.requests import create_session

WriteScenario = Callable[..., str]


async def test_shutdown_waits_for_a_run_whose_start_is_being_stored(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_scenario([{"text": "one"}], {"when": "hello", "steps": [{"hang": True}]})
    found = await create_session(portico.client, "script", "Go", options={"scenario": name})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    store, start, last = portico.gateway.store, portico.gateway.store.runs.start, session.log.last
    released, storing = threading.Event(), asyncio.Event()

    async def slow(*args: Any) -> None:
        store._database._writer.submit(released.wait)
        storing.set()
        await start(*args)

    monkeypatch.setattr(store.runs, "start", slow)
    submitting = asyncio.create_task(session.submit(Submission(message=HELLO)))
    await storing.wait()
    asyncio.get_running_loop().call_later(0.05, released.set)
    await session.stop("the daemon goes down")
    assert (await submitting).first == last + 1
    rows = await store.events.read(session.id, last)
    events = [decode(line) for _, body in rows for line in body.split(b"\n")]
    assert isinstance(events[0], TurnStart)
    assert isinstance(events[-2], Error) and events[-2].message == "the daemon goes down"
    assert [isinstance(event, SessionEnd) for event in events].count(True) == 1
