"""A caller that is cancelled during a write, as when an ACP client disconnects: the log, the session and the store agree."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from drivers.contract.agent import ToolReply
from gateway.runs.idempotency import IdempotencyKey
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Session, Submission
from tests.gateway.sessions.test_submit import HELLO, create_waiting_session, faster, suspend
from tests.support.daemon import RunningGateway
from tests.support.requests import create_session, get_history, send_turn

WriteScenario = Callable[..., str]


async def cancel_in_write(portico: RunningGateway, work: Coroutine[Any, Any, Any], method: str) -> None:
    """Cancel `work` while its write by `method` (REPOSITORY.METHOD) waits for the writer thread."""
    store = portico.gateway.store
    repository, name = method.split(".")
    unpatched, released, writing = getattr(getattr(store, repository), name), threading.Event(), asyncio.Event()

    async def write(*args: Any, **kwargs: Any) -> Any:
        store._database._writer.submit(released.wait)
        writing.set()
        return await unpatched(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(getattr(store, repository), name, write)
        task = asyncio.create_task(work)
        await writing.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.sleep(0.02)
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await task


async def assert_log_is_stored(portico: RunningGateway, session: Session) -> None:
    """Assert that the store has each event of the log once."""
    await session.log.written()
    rows = await portico.gateway.store.events.read(session.id, 0, rows=1000)
    numbers = [seq for first, body in rows for seq, _ in enumerate(body.split(b"\n"), first)]
    assert numbers == list(range(1, session.log.last + 1))


async def test_cancelled_prompt_leaves_a_consistent_session(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    key = IdempotencyKey("key", "digest")
    name = write_scenario([{"text": "one"}], {"when": "And?", "steps": [{"text": "here"}]})
    found = await create_session(portico.client, "script", "Go", options={"scenario": name})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    await cancel_in_write(portico, session.submit(Submission(message=HELLO, key=key)), "runs.start")
    assert session.state == "idle"
    assert (await send_turn(portico.client, session.id, "And?"))["messages"][-1]["content"] == "here"
    await assert_log_is_stored(portico, session)


@pytest.mark.parametrize("suspended", [True, False], ids=["suspended", "live"])
async def test_cancelled_replies_are_stored_and_the_run_continues(
    portico: RunningGateway, write_scenario: WriteScenario, suspended: bool
) -> None:
    session = await create_waiting_session(portico, write_scenario)
    if suspended:
        await suspend(session)
    await cancel_in_write(portico, session.submit(Submission(replies=[ToolReply("sky", "sun")])), "runs.resume")
    assert session.run is not None
    await session.run.wait()
    assert session.state == "idle"
    tools = [m["content"] for m in await get_history(portico.client, session.id) if m["role"] == "tool"]
    assert tools == ["sun"]
    assert (await send_turn(portico.client, session.id, "And?"))["messages"][-1]["content"] == "here"
    await assert_log_is_stored(portico, session)


async def test_cancelled_cancellation_of_a_suspended_run_is_completed(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    session = await create_waiting_session(portico, write_scenario)
    await suspend(session)
    await cancel_in_write(portico, session.cancel(), "runs.stop")
    assert session.state == "idle"
    assert (await send_turn(portico.client, session.id, "And?"))["messages"][-1]["content"] == "here"
    await assert_log_is_stored(portico, session)


async def test_settings_of_a_cancelled_submission_are_stored_with_its_turn_or_not_at_all(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    found = await create_session(portico.client, "script", "Go", options={"scenario": write_scenario([{"text": "one"}])})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    before = session.config
    await cancel_in_write(portico, session.submit(Submission(message=HELLO, settings=faster)), "runs.start")
    record = await portico.gateway.store.sessions.get(session.id)
    assert record is not None and record.config == session.config.to_json()
    assert session.config == faster(before) and len(await get_history(portico.client, session.id)) == 4
