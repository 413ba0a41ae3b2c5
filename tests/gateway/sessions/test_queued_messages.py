"""Queued messages: when other turns begin or fail before them, when their turns are refused, and when the daemon stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from drivers.contract.messages import UserMessage
from gateway.errors import AgentProblem, Conflict, ShuttingDown, StoreUnavailable, TooMany
from gateway.events.turn_reader import Turn
from gateway.runs.answer_format import AnswerFormat
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.message_queue import RETRY, QueuedMessage
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings
from tests.gateway.sessions.test_submit import create_waiting_session
from tests.support.daemon import RunningGateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import create_session
from tests.support.waiting import wait_until

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
    waiting = asyncio.create_task(session.submit(QUEUED))
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
        second = await waiting
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
        waiting = asyncio.create_task(session.submit(QUEUED))
        await wait_until(lambda: not session.queue.empty)
    failing.set()
    with pytest.raises(OSError, match="disk full"):
        await first
    async with asyncio.timeout(TIMEOUT):
        assert await last_event_kind(await waiting) == "session_end"


@pytest.fixture
async def busy(portico: RunningGateway, write_scenario: WriteScenario) -> tuple[Session, Turn]:
    """A session at work on a turn that only a cancel ends."""
    steps = [{"text": "begin"}, {"hang": True}]
    name = write_scenario({"when": "^work$", "steps": steps}, [{"text": "[{prompt}]"}])
    found = await create_session(portico.client, options={"scenario": name})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    return session, await session.submit(message("work"))


def message(text: str, **fields: Any) -> Submission:
    return Submission(message=UserMessage(content=text), **fields)


def queued(text: str, **fields: Any) -> Submission:
    return message(text, when_busy="queue", **fields)


async def stored(portico: RunningGateway, session: Session) -> tuple[list[Any], str | None]:
    """The stored queue of a session: its messages, and why it is stopped."""
    rows = await portico.gateway.store.queued_messages.of(session.id)
    record = await portico.gateway.store.sessions.get(session.id)
    assert record is not None
    return [json.loads(row.message)["content"] for row in rows], record.queue_stopped


async def test_message_of_a_connection_is_not_stopped_by_a_cancel(portico: RunningGateway, busy: tuple[Session, Turn]) -> None:
    session, _ = busy
    await session.enqueue(queued("kept"))
    tied = asyncio.create_task(session.submit(queued("tied", cancel_on_disconnect=True)))
    await wait_until(lambda: len(session.queue) == 2)
    assert await session.cancel()
    assert await last_event_kind(await tied) == "session_end"
    await wait_until(lambda: session.state == "idle")
    assert (session.queue.stopped, await stored(portico, session)) == ("cancelled", (["kept"], "cancelled"))
    # To an idle session with a stopped queue it begins at once.
    await last_event_kind(await session.submit(queued("again", cancel_on_disconnect=True)))
    assert await stored(portico, session) == (["kept"], "cancelled")


async def test_refused_turn_is_the_error_of_the_client_that_waits_and_its_message_leaves_the_queue(
    portico: RunningGateway, busy: tuple[Session, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = busy
    refused = asyncio.create_task(session.submit(queued("refused")))
    await wait_until(lambda: len(session.queue) == 1)
    await session.enqueue(queued("next"))

    async def fails(*_: Any, **__: Any) -> None:
        raise AgentProblem("agent 'script' cannot start")

    with monkeypatch.context() as patch:
        patch.setattr(session, "_start_agent", fails)
        await session.end_agent("the agent was ended")
        with pytest.raises(AgentProblem, match="cannot start"):
            await refused
        # Nobody waits for the next one, which stays.
        await wait_until(lambda: session.queue.stopped is not None)
        await wait_until_stored(portico, session, (["next"], "agent 'script' cannot start"))
    await session.queue.go_on()
    await wait_until(lambda: session.queue.empty and session.state == "idle")
    assert [one.content async for one in session.history.messages() if isinstance(one, UserMessage)][-1] == "next"
    assert await stored(portico, session) == ([], None)


async def test_message_stays_if_its_client_is_gone_when_its_turn_is_refused(
    portico: RunningGateway, busy: tuple[Session, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = busy
    starting, gone, going = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def refused(queued: QueuedMessage) -> Turn:
        starting.set()
        await going.wait()
        raise AgentProblem("agent 'script' cannot start")

    monkeypatch.setattr(session.queue, "_begin", refused)
    left = asyncio.create_task(session.submit(queued("left", disconnected=gone.wait)))
    await wait_until(lambda: len(session.queue) == 1)
    await session.end_agent("the agent was ended")
    await starting.wait()
    gone.set()
    with pytest.raises(Conflict, match="disconnected"):
        await left
    going.set()
    await wait_until_stored(portico, session, (["left"], "agent 'script' cannot start"))


async def wait_until_stored(portico: RunningGateway, session: Session, expected: tuple[list[Any], str | None]) -> None:
    async def found() -> bool:
        return await stored(portico, session) == expected

    await wait_until(found)


async def test_message_without_a_client_is_tried_again_where_a_limit_is_reached(
    clock: ManualClock, portico: RunningGateway, busy: tuple[Session, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = busy
    limits, tries = [TooMany("all slots are taken"), StoreUnavailable("the disk is full")], list[Exception]()
    begin = session.queue._begin

    async def full(queued: QueuedMessage) -> Turn:
        if limits:
            tries.append(limits.pop())
            raise tries[-1]
        return await begin(queued)

    monkeypatch.setattr(session.queue, "_begin", full)
    await session.enqueue(queued("patient"))
    await session.end_agent("the agent was ended")
    await clock.expire_until(wait_until(lambda: session.queue.empty and session.state == "idle"), RETRY)
    assert len(tries) == 2
    assert await stored(portico, session) == ([], None)


async def test_schema_of_an_answer_waits_with_its_message(portico: RunningGateway, busy: tuple[Session, Turn]) -> None:
    session, _ = busy
    answer, seen = AnswerFormat({"type": "object"}), list[AnswerFormat | None]()
    waiting = await session.enqueue(queued("as JSON", answer=answer))
    (row,) = await portico.gateway.store.queued_messages.of(session.id)
    assert row.settings is not None and SessionSettings.from_json(row.settings.config, {}).answer == answer
    tied = asyncio.create_task(session.submit(queued("tied", answer=answer, cancel_on_disconnect=True)))
    await wait_until(lambda: len(session.queue) == 2)
    for one in (waiting, *session.queue.messages[1:]):
        one.began = lambda turn: seen.append(session.config.answer)
    await session.end_agent("the agent was ended")
    await tied
    await wait_until(lambda: session.queue.empty and session.state == "idle")
    assert seen == [answer, answer]


async def test_message_that_is_being_started_cannot_be_changed(
    portico: RunningGateway, busy: tuple[Session, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = busy
    begin, starting, going = session.queue._begin, asyncio.Event(), asyncio.Event()

    async def slow(queued: QueuedMessage) -> Turn:
        starting.set()
        await going.wait()
        return await begin(queued)

    monkeypatch.setattr(session.queue, "_begin", slow)
    first, second = await session.enqueue(queued("first")), await session.enqueue(queued("second"))
    await session.end_agent("the agent was ended")
    await starting.wait()
    for change in (session.queue.edit(first.id, MESSAGE), session.queue.remove(first.id)):
        with pytest.raises(Conflict, match="being started"):
            await change
    with pytest.raises(Conflict, match="being started"):
        await session.queue.reorder([second.id, first.id])
    await session.queue.edit(second.id, UserMessage(content="in other words"))
    going.set()
    await wait_until(lambda: session.queue.empty and session.state == "idle")
    texts = [one.content async for one in session.history.messages() if isinstance(one, UserMessage)]
    assert texts[-2:] == ["first", "in other words"]


async def test_change_that_cannot_be_stored_changes_nothing(
    portico: RunningGateway, busy: tuple[Session, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = busy
    first, second = await session.enqueue(queued("first")), await session.enqueue(queued("second"))

    async def fails(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("the disk is full")

    changes: dict[str, Callable[[], Awaitable[Any]]] = {
        "add": lambda: session.enqueue(queued("third")),
        "update": lambda: session.queue.edit(first.id, MESSAGE),
        "reorder": lambda: session.queue.reorder([second.id, first.id]),
        "remove": lambda: session.queue.remove(first.id),
    }
    for write, change in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(portico.gateway.store.queued_messages, write, fails)
            with pytest.raises(StoreUnavailable):
                await change()
    assert [one.message.content for one in session.queue.messages] == ["first", "second"]
    assert await stored(portico, session) == (["first", "second"], None)


async def test_shutdown_refuses_the_clients_that_wait_and_keeps_their_messages(
    portico: RunningGateway, busy: tuple[Session, Turn]
) -> None:
    session, _ = busy
    waiting = asyncio.create_task(session.submit(queued("kept")))
    await wait_until(lambda: len(session.queue) == 1)
    await session.stop("the gateway was shut down")
    with pytest.raises(ShuttingDown):
        await waiting
    assert await stored(portico, session) == (["kept"], None)


async def test_session_whose_queue_is_stopped_is_not_held_in_memory(portico: RunningGateway, busy: tuple[Session, Turn]) -> None:
    session, _ = busy
    await session.enqueue(queued("kept"))
    assert session in portico.gateway.sessions.held
    await session.cancel()
    async with session.lock:
        await session.sleep()
    assert session.only_stored and session not in portico.gateway.sessions.held
    fork = await portico.gateway.sessions.fork(ADMINISTRATOR, session, unchanged)
    assert fork.queue.empty
    assert await stored(portico, fork) == ([], None)


async def unchanged(settings: SessionSettings) -> SessionSettings:
    return settings
