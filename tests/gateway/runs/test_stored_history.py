"""Histories that are longer than a page: what clients, agents and recovery read of them, and in how much memory."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from drivers.contract.messages import AssistantMessage, Message, SystemMessage, ToolMessage, ToolUseBlock, UserMessage
from gateway.errors import NotFound
from gateway.events.messages import failure_message, message_row
from gateway.protocols.aap import sessions as aap_sessions
from gateway.runs.pending_calls import unanswered
from gateway.runs.recovery import WHY, close_open_runs
from gateway.runs.stored_history import StoredHistory
from gateway.store import EventRow, FailureRecord, MessageRow, RunRecord, SessionRecord, Store
from gateway.store import messages as stored_messages
from tests.support.daemon import RunningGateway
from tests.support.requests import create_session, get_history
from tests.support.stored_messages import delete_session
from tests.support.stores import store_url

WriteScenario = Callable[..., str]
MB = 1_000_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    yield found
    await found.close()


async def stored(store: Store, messages: Sequence[Message]) -> StoredHistory:
    await store.sessions.create(SessionRecord("s", "script"), [message_row(message) for message in messages])
    return StoredHistory(store, "s")


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def assistant(text: str) -> AssistantMessage:
    return AssistantMessage(content=text)


def calling(*names: str) -> AssistantMessage:
    return AssistantMessage(content=tuple(ToolUseBlock(tool_call_id=name, name="t", input={}) for name in names))


def result(name: str, text: str = "") -> ToolMessage:
    return ToolMessage(tool_call_id=name, content=text)


async def test_pages_are_the_whole_history_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_messages, "PAGE_CHARACTERS", 200)
    messages = [user("x" * size) for size in (1, 500, 2, 3, 100, 100, 100, 1000, 5)]
    history = await stored(store, messages)
    assert [message async for message in history.messages()] == messages
    assert [message async for message in history.messages(2, 7)] == messages[2:7]
    pages = [await store.messages.page("s", first, 9) for first in range(10)]
    assert [len(page) for page in pages] == [2, 1, 4, 3, 2, 2, 2, 1, 1, 0]


async def test_messages_stored_meanwhile_belong_to_the_next_read(store: Store) -> None:
    history = await stored(store, [user("a"), assistant("b")])
    found = []
    async for message in history.messages():
        if not found:
            await store.messages.append("s", [MessageRow(user("later").model_dump_json())])
        found.append(message)
    assert found == [user("a"), assistant("b")]


async def test_a_history_that_is_deleted_meanwhile_is_not_ended_as_if_it_were_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_messages, "PAGE_CHARACTERS", 1)
    history = await stored(store, [user("a"), assistant("b")])
    reading = history.messages()
    assert await anext(reading) == user("a")
    await delete_session(store, "s")
    with pytest.raises(NotFound):
        await anext(reading)


OMITTED = "[The first {} messages of this conversation are omitted: it is longer than the 0 MiB that an agent is given.]"


SEEDS: dict[str, tuple[list[Message], list[Message]]] = {
    "the newest that fit, and all system messages": (
        [SystemMessage(content="s"), user("x" * 500), assistant("b"), user("c"), assistant("d")],
        [SystemMessage(content="s"), user(OMITTED.format(2)), assistant("b"), user("c"), assistant("d")],
    ),
    "at least the last message": ([user("a"), assistant("x" * 900)], [user(OMITTED.format(1)), assistant("x" * 900)]),
    "no result without its call": (
        [user("a"), calling("1"), result("1", "x" * 250), result("2"), assistant("b")],
        [user(OMITTED.format(4)), assistant("b")],
    ),
    "the calls that the last results answer": (
        [user("a"), calling("1", "2"), result("1", "x" * 400), result("2", "x" * 400)],
        [user(OMITTED.format(1)), calling("1", "2"), result("1", "x" * 400), result("2", "x" * 400)],
    ),
    "a short history": ([user("a"), assistant("b")], [user("a"), assistant("b")]),
}


async def test_an_agent_is_seeded_with_the_newest_messages(store: Store) -> None:
    for name, (messages, seed) in SEEDS.items():
        await store.sessions.create(SessionRecord(name, "script"), [message_row(message) for message in messages])
        assert await StoredHistory(store, name).seed(most=300) == seed, name


async def test_the_seed_of_a_compacted_history_keeps_its_summary(store: Store) -> None:
    history = await stored(store, [user("a"), assistant("b"), user("x" * 500), assistant("c"), user("prompt")])
    await store.compactions.set("s", 4, "So far: a.")
    assert await history.seed(leave_out=1, most=300) == [user("So far: a.\n\n" + OMITTED.format(3)), assistant("c")]
    await store.compactions.set("s", 2, "So far: a.")
    assert await history.seed(leave_out=1, most=300) == [user("So far: a."), assistant("c")]


async def test_unanswered_calls_are_those_of_the_whole_history(store: Store) -> None:
    messages = [calling("sub"), calling("1", "2"), result("1"), calling("3"), result("3"), calling("4", "5"), result("4")]
    history = await stored(store, messages)
    assert list(unanswered(await history.unanswered_calls())) == list(unanswered(messages)) == ["sub", "2", "5"]
    # The last assistant message decides what is pending.
    await store.messages.append("s", [MessageRow(assistant("end").model_dump_json())])
    assert (await history.unanswered_calls())[-1] == AssistantMessage(content=())


async def test_a_history_is_sent_in_chunks(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step for n in range(50) for step in ({"text": f'{n} é " \\ \u2028'}, {"message_end": True})]
    name = write_scenario(steps)
    session = (await create_session(portico.client, options={"scenario": name}))["sessionId"]
    short = await portico.client.get(f"/session/{session}")
    assert int(short.headers["content-length"]) == len(short.content)
    monkeypatch.setattr(aap_sessions, "HISTORY_CHUNK", 100)
    long = await portico.client.get(f"/session/{session}")
    assert "content-length" not in long.headers
    assert long.headers["content-type"] == short.headers["content-type"] == "application/json"
    assert long.content == short.content
    assert list(long.json()["history"]) == ["compacted", "full"]
    assert [message["content"] for message in long.json()["history"]["full"][1:]] == [f'{n} é " \\ \u2028' for n in range(50)]
    assert (await portico.client.get(f"/aap/v3/sessions/{session}/history?type=full")).json() == {
        "history": {"full": long.json()["history"]["full"]}
    }


async def test_a_long_history_is_served_in_little_memory(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    """The output of a flood of 10 MB without an end of a message (tests/faults/volume.py has one of 500 MB)."""
    name = write_scenario({"when": "flood", "steps": [{"events": {"count": 4000, "text": "{n}|" + "x" * 2496}}]}, [{"text": "a"}])
    session = (await create_session(portico.client, "script", "begin", options={"scenario": name}))["sessionId"]
    body = {"messages": [{"role": "user", "content": "flood"}], "stream": "delta"}
    assert (await portico.client.post(f"/session/{session}", json=body)).status_code == 200
    tracemalloc.start()
    try:
        size = 0
        async with portico.client.stream("GET", f"/session/{session}?history=full") as answer:
            async for chunk in answer.aiter_raw(65536):
                size += len(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 10 * MB
    assert peak < 15 * MB
    history = (await get_history(portico.client, session))[3:]
    assert [message["role"] for message in history] == ["assistant"] * 10
    text = "".join(message["content"] for message in history)
    assert [int(part.rpartition("x")[2]) for part in text.split("|")[:-1]] == list(range(4000))


async def test_recovery_reads_the_messages_of_the_last_run_only(store: Store) -> None:
    earlier = [user("x" * 100_000) for _ in range(100)]
    await stored(store, earlier)
    await store.messages.append("s", [MessageRow(user("y" * 100_000).model_dump_json(), seq) for seq in range(1, 101)])
    run = RunRecord("r", "s", "running", None, 101)
    event = json.dumps({"kind": "agent_token", "text": "begin"}).encode()
    await store.runs.start(run, [MessageRow(user("go").model_dump_json(), 101)], EventRow("s", 101, 101, event))
    tracemalloc.start()
    try:
        assert await asyncio.wait_for(close_open_runs(store), 60) == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * MB
    history = StoredHistory(store, "s")
    assert [message async for message in history.messages(200)] == [user("go"), assistant("begin")]


async def test_recovery_stores_why_a_run_without_text_failed(store: Store) -> None:
    await stored(store, [])
    run = RunRecord("r", "s", "running", None, 1)
    await store.runs.start(run, [MessageRow(user("go").model_dump_json(), 1)], EventRow("s", 1, 1, b'{"kind":"turn_start"}'))
    await close_open_runs(store)
    history = StoredHistory(store, "s")
    assert [message async for message in history.with_failures()] == [user("go"), failure_message(WHY)]
    assert [message async for message in history.messages()] == await history.seed() == [user("go")]
    assert (await store.sessions.details(["s"]))["s"].error == WHY
    await delete_session(store, "s")
    assert await store.failures.without_text("s") == []


async def test_reasons_of_failed_runs_stay_at_their_positions(store: Store) -> None:
    history = await stored(store, [user("a")])
    for number, (reason, without_text) in enumerate((("one", True), ("with text", False), ("two", True)), 1):
        await store.runs.start(RunRecord(f"r{number}", "s", "running", None, number))
        row, messages = EventRow("s", number, number, b""), [MessageRow(user(str(number)).model_dump_json(), number)]
        failure = FailureRecord(reason, without_text)
        await store.runs.stop(f"r{number}", "ended", "error", row, messages=messages, failure=failure)
    found = [message async for message in history.with_failures()]
    assert found == [user("a"), user("1"), failure_message("one"), user("2"), user("3"), failure_message("two")]
