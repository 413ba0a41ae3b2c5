"""A daemon that is killed in the middle: nothing stored is lost, nothing it started is left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from drivers.contract.events import AgentToken, Awaiting, MessageEnd, OutputEvent, SessionEnd, ToolCall, ToolResult
from drivers.runtime.process_tree import MARKER
from gateway.runs.recovery import UNSEEN, close_open_runs
from gateway.store import EventRow, RunRecord, SessionRecord, Store
from gateway.store.sqlite import sqlite_url
from tests.daemon import Daemon
from tests.gateway.talk import agents_of, alive, create, look, pid_in, say, until, user

Scene = Callable[..., str]
SPOKEN = "".join(f"event {n} " for n in range(3000))


async def _kill_in_mid_turn(daemon: Daemon, scene: Scene, folder: Path) -> tuple[str, list[int]]:
    """A session whose daemon is killed while it hangs after much text; the agent and a stray of its own session are left."""
    long = [
        {"text": "first message"},
        {"message_end": True},
        {"events": 3000},
        {"spawn": {"seconds": 300, "new_session": True, "pid_file": "stray"}},
        {"text": "last words"},
        {"hang": {"ignore_term": True}},
    ]
    name = scene({"when": "long", "steps": long}, [{"text": "{turn} "}, {"remember": True}])
    await daemon.start()
    async with daemon.client() as client:
        session = (await create(client, "script", "one", options={"scenario": name, "token": "tok-1234"}))["sessionId"]
        body = {"messages": [user("long")], "stream": "delta"}
        async with client.stream("POST", f"/session/{session}", json=body) as answer:
            seen = ""
            async for chunk in answer.aiter_text():
                seen += chunk
                if "last words" in seen:
                    break
            stray = await pid_in(folder / "scenes" / "stray")
            (agent,) = agents_of(daemon.pid)
            await until(lambda: any(b"last words" in f.read_bytes() for f in (folder / "data").glob("portico.db*")))
            await daemon.kill()
    assert alive(agent.pid) and alive(stray)
    return session, [agent.pid, stray]


async def test_a_killed_turn_keeps_its_words_and_ends_with_an_error(daemon: Daemon, scene: Scene, tmp_path: Path) -> None:
    session, left = await _kill_in_mid_turn(daemon, scene, tmp_path)
    await daemon.start()
    assert not [pid for pid in left if alive(pid)]
    async with daemon.client() as client:
        found = await look(client, session)
        assert (found["state"], found["stopReason"]) == ("idle", "error")
        assert found["history"]["full"] == [
            user("one"),
            {"role": "assistant", "content": "1 []"},
            user("long"),
            {"role": "assistant", "content": "first message"},
            {"role": "assistant", "content": f"{SPOKEN}last words"},
        ]
        answer = await say(client, session, "two")
        assert answer["stopReason"] == "end_turn"
        assert answer["messages"][0]["content"] == '3 ["one", "long"]'
        assert (await look(client, session))["stopReason"] == "end_turn"
    assert await daemon.stop() == 0
    assert "left behind" in daemon.stderr.decode()


async def test_a_second_start_finds_nothing_to_do(daemon: Daemon, scene: Scene, tmp_path: Path) -> None:
    session, _ = await _kill_in_mid_turn(daemon, scene, tmp_path)
    await daemon.start()
    async with daemon.client() as client:
        before = await look(client, session)
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        assert await look(client, session) == before
    await daemon.stop()
    assert b"left behind" not in daemon.stderr
    assert b"under way" not in daemon.stderr


async def test_strays_are_found_by_their_marker_alone(daemon: Daemon, scene: Scene, tmp_path: Path) -> None:
    _, (agent, stray) = await _kill_in_mid_turn(daemon, scene, tmp_path)
    psutil.Process(agent).kill()
    await until(lambda: not alive(agent))
    assert alive(stray)
    await daemon.start()
    assert not alive(stray)


async def test_processes_of_others_are_left_alone(daemon: Daemon, tmp_path: Path) -> None:
    """A process with the marker of another gateway, and one whose pid stands in the ledger but that started at another time."""
    await daemon.start()
    await daemon.kill()
    others = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)", env={MARKER: marker})
        for marker in ("another.1", "")
    ]
    store = await Store.open(sqlite_url(tmp_path / "data"))
    await store.processes.started("stale", others[1].pid, psutil.Process(others[1].pid).create_time() - 100)
    await store.close()
    try:
        await daemon.start()
        assert all(alive(process.pid) for process in others)
        store = await Store.open(sqlite_url(tmp_path / "data"))
        assert await store.processes.all() == []
        await store.close()
    finally:
        for process in others:
            process.kill()
            await process.wait()


async def test_the_agent_of_a_daemon_that_stops_well_is_gone(daemon: Daemon, scene: Scene, tmp_path: Path) -> None:
    steps = [{"spawn": {"seconds": 300, "new_session": True, "pid_file": "stray"}}, {"text": "x"}]
    await daemon.start()
    async with daemon.client() as client:
        session = (await create(client, options={"scenario": scene(steps)}))["sessionId"]
        (agent,) = agents_of(daemon.pid)
        stray = await pid_in(tmp_path / "scenes" / "stray")
        before = await look(client, session)
    assert await daemon.stop() == 0
    assert not alive(agent.pid)
    assert not alive(stray)
    await daemon.start()
    async with daemon.client() as client:
        assert await look(client, session) == before
        assert before["stopReason"] == "end_turn"


CALL = ToolCall(id="c", name="lookup", status="started", input={})
RESULT = ToolResult(tool_call_id="c", output="found")
TEXT_THEN_CALL: list[OutputEvent] = [AgentToken(text="a"), CALL, RESULT, AgentToken(text="b"), MessageEnd(), AgentToken(text="c")]
MESSAGES = [
    '{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","toolCallId":"c","name":"lookup","input":{}}]}',
    '{"role":"tool","toolCallId":"c","content":"found"}',
    '{"role":"assistant","content":"b"}',
    '{"role":"assistant","content":"c"}',
]


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    found = await Store.open(sqlite_url(tmp_path))
    yield found
    await found.close()


@pytest.mark.parametrize("stored", range(5))
async def test_messages_that_were_not_stored_yet_are_made_up_for(store: Store, stored: int) -> None:
    """Killed after any of the messages was stored: each is in the history once."""
    await store.sessions.create(SessionRecord("s", "script"), ['{"role":"assistant","content":"old"}'])
    await store.runs.start(RunRecord("r", "s", "running", None, 3), ['{"role":"user","content":"go"}', *MESSAGES[:stored]])
    earlier = (AgentToken(text="old"), SessionEnd(exit_code=0))
    await store.events.append(EventRow("s", 1, 2, b"\n".join(event.encode() for event in earlier)))
    for number, event in enumerate(TEXT_THEN_CALL, 3):
        await store.events.append(EventRow("s", number, number, event.encode()))
    assert await close_open_runs(store) == 1
    history = await store.messages.bodies("s")
    assert history == ['{"role":"assistant","content":"old"}', '{"role":"user","content":"go"}', *MESSAGES]
    last = await store.runs.last("s")
    assert last is not None
    assert (last.state, last.stop_reason) == ("ended", "error")
    assert await store.events.last_seq("s") == 10 + UNSEEN, "no number is given twice"
    assert await close_open_runs(store) == 0


async def test_calls_that_were_open_are_given_up(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "script"), [])
    await store.runs.start(RunRecord("r", "s", "waiting", None, 1), ['{"role":"user","content":"go"}'])
    await store.events.append(EventRow("s", 1, 2, b"\n".join(event.encode() for event in (CALL, Awaiting(calls=())))))
    await close_open_runs(store)
    assert await store.messages.bodies("s") == [
        '{"role":"user","content":"go"}',
        '{"role":"assistant","content":[{"type":"tool_use","toolCallId":"c","name":"lookup","input":{}}]}',
        '{"role":"tool","toolCallId":"c","content":"Tool call cancelled"}',
    ]


async def test_a_run_of_which_nothing_was_stored(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "script"), [])
    await store.runs.start(RunRecord("r", "s", "running", None, 1), ['{"role":"user","content":"go"}'])
    assert await close_open_runs(store) == 1
    assert await store.messages.bodies("s") == ['{"role":"user","content":"go"}']


@pytest.mark.parametrize("seeds", [True, False])
async def test_a_native_session_of_a_run_that_was_cut_off_is_forgotten_where_a_fresh_one_can_be_seeded(
    store: Store, seeds: bool
) -> None:
    for name in ("cut", "idle"):
        await store.sessions.create(SessionRecord(name, "script", native_id=f"native {name}"), [])
    await store.runs.start(RunRecord("r", "cut", "running", None, 1), ['{"role":"user","content":"go"}'])
    asked = list[str]()
    await close_open_runs(store, lambda agent: asked.append(agent) or seeds)  # type: ignore[func-returns-value]
    found = [session.native_id if (session := await store.sessions.get(name)) else "" for name in ("cut", "idle")]
    assert (found, asked) == ([None if seeds else "native cut", "native idle"], ["script"])
