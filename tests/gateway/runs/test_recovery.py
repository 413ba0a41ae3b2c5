"""Recovery after the daemon was killed: stored events and messages are kept, and agent processes are ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from drivers.contract.events import AgentToken, Awaiting, MessageEnd, OutputEvent, SessionEnd, ToolCall, ToolResult
from drivers.contract.messages import AssistantMessage, ToolMessage, ToolUseBlock, UserMessage
from drivers.runtime import process_tree
from drivers.runtime.process_tree import MARKER, Root, left_behind
from gateway.events import messages as fold_of_messages
from gateway.events.event_log import EventLog
from gateway.events.log_entries import LogEvent, Steered, TurnStart
from gateway.events.messages import Fold
from gateway.observability.metrics import Metrics
from gateway.runs import recovery
from gateway.runs.agent_output import RunOutput
from gateway.runs.recovery import UNSEEN, close_open_runs, end_left_behind
from gateway.security.redaction import Redactor
from gateway.store import EventRow, MessageRow, RunRecord, SessionRecord, Store
from tests.support.daemon import Daemon
from tests.support.requests import agent_processes, create_session, get_session, is_alive, read_pid, send_turn, user_message
from tests.support.stored_messages import message_bodies
from tests.support.stores import content, store_url
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
LONG_TEXT = "".join(f"event {n} " for n in range(3000))


async def _kill_during_turn(daemon: Daemon, write_scenario: WriteScenario, folder: Path) -> tuple[str, list[int]]:
    """Create a session and kill the daemon during a turn with much text.

    Returns the session id and the ids of two processes that are left: the agent, and a process that the agent started in a
    process session of its own.
    """
    long = [
        {"text": "first message"},
        {"message_end": True},
        {"events": 3000},
        {"spawn": {"seconds": 300, "new_session": True, "pid_file": "stray"}},
        {"text": "last words"},
        {"hang": {"ignore_term": True}},
    ]
    name = write_scenario({"when": "long", "steps": long}, [{"text": "{turn} "}, {"remember": True}])
    await daemon.start()
    async with daemon.client() as client:
        session = (await create_session(client, "script", "one", options={"scenario": name, "token": "tok-1234"}))["sessionId"]
        body = {"messages": [user_message("long")], "stream": "delta"}
        async with client.stream("POST", f"/session/{session}", json=body) as answer:
            seen = ""
            async for chunk in answer.aiter_text():
                seen += chunk
                if "last words" in seen:
                    break
            stray = await read_pid(folder / "scenes" / "stray")
            (agent,) = agent_processes(daemon.pid)
            await wait_until(lambda: b"last words" in content(folder / "data"))
            await daemon.kill()
    assert is_alive(agent.pid) and is_alive(stray)
    return session, [agent.pid, stray]


async def test_turn_of_a_killed_daemon_keeps_its_text_and_ends_with_an_error(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    session, left = await _kill_during_turn(daemon, write_scenario, tmp_path)
    await daemon.start()
    assert not [pid for pid in left if is_alive(pid)]
    async with daemon.client() as client:
        found = await get_session(client, session)
        assert (found["state"], found["stopReason"]) == ("idle", "error")
        assert found["history"]["full"] == [
            user_message("one"),
            {"role": "assistant", "content": "1 []"},
            user_message("long"),
            {"role": "assistant", "content": "first message"},
            {"role": "assistant", "content": f"{LONG_TEXT}last words"},
        ]
        answer = await send_turn(client, session, "two")
        assert answer["stopReason"] == "end_turn"
        assert answer["messages"][0]["content"] == '3 ["one", "long"]'
        before = await get_session(client, session)
        assert before["stopReason"] == "end_turn"
    await daemon.kill()
    assert "left behind" in daemon.log.read_text()
    # The next start has nothing to recover.
    await daemon.start()
    async with daemon.client() as client:
        assert await get_session(client, session) == before
    assert await daemon.stop() == 0
    assert b"under way" not in daemon.stderr


async def test_processes_are_found_by_their_marker_without_the_agent_and_unrelated_ones_are_not_ended(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    """One has the marker of another gateway; the id of the other is stored with another start time."""
    _, (agent, stray) = await _kill_during_turn(daemon, write_scenario, tmp_path)
    psutil.Process(agent).kill()
    await wait_until(lambda: not is_alive(agent))
    assert is_alive(stray)
    others = [await asyncio.create_subprocess_exec("sleep", "60", env={MARKER: marker}) for marker in ("another.1", "")]
    store = await Store.open(store_url(tmp_path / "data"))
    await store.processes.started("stale", others[1].pid, psutil.Process(others[1].pid).create_time() - 100)
    await store.close()
    try:
        await daemon.start()
        assert not is_alive(stray)
        assert all(is_alive(process.pid) for process in others)
        store = await Store.open(store_url(tmp_path / "data"))
        assert await store.processes.all() == []
        await store.close()
    finally:
        for process in others:
            process.kill()
            await process.wait()


async def test_a_late_search_holds_up_no_start_and_ends_what_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def blocked(roots: Collection[Root]) -> set[psutil.Process]:
        answered.wait()
        return left_behind(roots)

    monkeypatch.setattr(process_tree, "SEARCH_SECONDS", 0.05)
    monkeypatch.setattr(recovery, "left_behind", blocked)
    left = await asyncio.create_subprocess_exec("sleep", "600")
    store = await Store.open(store_url(tmp_path))
    try:
        await store.processes.started("earlier.1", left.pid, psutil.Process(left.pid).create_time())
        assert await asyncio.wait_for(end_left_behind(store), 30) == []
        assert left.returncode is None
        answered.set()
        assert await asyncio.wait_for(left.wait(), 30) == -15
        while await store.processes.all():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    finally:
        answered.set()
        await store.close()


CALL = ToolCall(id="c", name="lookup", status="started", input={})
RESULT = ToolResult(tool_call_id="c", output="found")
TEXT_THEN_CALL: list[OutputEvent] = [AgentToken(text="a"), CALL, RESULT, AgentToken(text="b"), MessageEnd(), AgentToken(text="c")]
MESSAGES = [
    '{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","toolCallId":"c","name":"lookup","input":{}}]}',
    '{"role":"tool","toolCallId":"c","content":"found"}',
    '{"role":"assistant","content":"b"}',
    '{"role":"assistant","content":"c"}',
]
NUMBERS = [6, 6, 8, 10]
"""The sequence numbers of MESSAGES, with the prompt at 3; the event that completes the last message is not stored."""
GO = MessageRow('{"role":"user","content":"go"}', 1)
GO_AT_3 = MessageRow('{"role":"user","content":"go"}', 3)


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    found = await Store.open(store_url(tmp_path))
    yield found
    await found.close()


async def test_messages_that_were_not_stored_are_appended(store: Store) -> None:
    """The daemon was killed after two messages were stored: each message is in the history once."""
    await store.sessions.create(SessionRecord("s", "script"), [MessageRow('{"role":"assistant","content":"old"}')])
    await store.runs.start(RunRecord("r", "s", "running", None, 3), [GO_AT_3])
    await store.messages.append("s", [MessageRow(*message) for message in zip(MESSAGES[:2], NUMBERS, strict=False)])
    earlier = (AgentToken(text="old"), SessionEnd(exit_code=0))
    await store.events.append(EventRow("s", 1, 2, b"\n".join(event.encode() for event in earlier)))
    for number, event in enumerate([TurnStart(messages=(UserMessage(content="go"),)), *TEXT_THEN_CALL], 3):
        await store.events.append(EventRow("s", number, number, event.encode()))
    assert await close_open_runs(store) == 1
    history = await message_bodies(store, "s")
    assert history == ['{"role":"assistant","content":"old"}', '{"role":"user","content":"go"}', *MESSAGES]
    last = await store.runs.last("s")
    assert last is not None
    assert (last.state, last.stop_reason) == ("ended", "error")
    assert await store.events.last_seq("s") == 11 + UNSEEN, "no number is given twice"
    assert await close_open_runs(store) == 0


async def test_calls_without_a_result_get_the_result_cancelled(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "script"), [])
    await store.runs.start(RunRecord("r", "s", "waiting", None, 1), [GO])
    await store.events.append(EventRow("s", 1, 2, b"\n".join(event.encode() for event in (CALL, Awaiting(calls=())))))
    await close_open_runs(store)
    assert await message_bodies(store, "s") == [
        '{"role":"user","content":"go"}',
        '{"role":"assistant","content":[{"type":"tool_use","toolCallId":"c","name":"lookup","input":{}}]}',
        '{"role":"tool","toolCallId":"c","content":"Tool call cancelled"}',
    ]


async def test_run_without_stored_events_keeps_its_prompt(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "script"), [])
    await store.runs.start(RunRecord("r", "s", "running", None, 1), [GO])
    assert await close_open_runs(store) == 1
    assert await message_bodies(store, "s") == ['{"role":"user","content":"go"}']


async def store_run(store: Store, name: str, prompt: str, output: Sequence[LogEvent], *, messages: bool = True) -> None:
    """Store a run of session `s` that is still `running`, with its events and, if asked to, the messages that they complete."""
    seq = await store.events.last_seq("s") + 1
    begin = TurnStart(messages=(UserMessage(content=prompt),))
    await store.runs.start(RunRecord(name, "s", "running", None, seq), [MessageRow(begin.messages[0].model_dump_json(), seq)])
    events = [begin, *output]
    await store.events.append(EventRow("s", seq, seq + len(events) - 1, b"\n".join(event.encode() for event in events)))
    fold = Fold()
    completed = [(number, message) for number, event in enumerate(events, seq) for message in fold.feed(event)]
    if messages:
        await store.messages.append("s", [MessageRow(message.model_dump_json(), number) for number, message in completed])


async def test_run_whose_end_is_stored_gets_no_second_end(store: Store) -> None:
    """A run that could not be stored as ended is ended as its events state."""
    await store.sessions.create(SessionRecord("s", "script"), [])
    end = SessionEnd(exit_code=0, stop_reason="max_tokens")
    await store_run(store, "r", "one", [AgentToken(text="words"), end], messages=False)
    assert await close_open_runs(store) == 1
    assert await message_bodies(store, "s") == ['{"role":"user","content":"one"}', '{"role":"assistant","content":"words"}']
    assert await store.runs.last("s") == RunRecord("r", "s", "ended", "max_tokens", 1)
    assert await store.events.last_seq("s") == 3


@pytest.mark.parametrize("ended", [True, False], ids=["with its end", "without an end"])
async def test_output_of_later_runs_is_not_taken_for_that_of_an_unfinished_run(store: Store, ended: bool) -> None:
    await store.sessions.create(SessionRecord("s", "script"), [])
    end = [SessionEnd(exit_code=1, stop_reason="error")]
    await store_run(store, "failed", "one", [AgentToken(text="first"), *(end if ended else [])])
    for number in ("two", "three"):
        await store_run(store, number, number, [AgentToken(text=number), MessageEnd(), AgentToken(text="."), *end])
        await store.runs.end((await store.runs.unfinished())[-1], "end_turn")
    history, last = await message_bodies(store, "s"), await store.events.last_seq("s")
    assert await close_open_runs(store) == 1
    assert await message_bodies(store, "s") == history
    assert await store.events.last_seq("s") == last
    assert await store.runs.unfinished() == []


@pytest.mark.parametrize("seeds", [True, False])
async def test_native_session_of_an_interrupted_run_is_removed_if_a_new_one_can_be_seeded(store: Store, seeds: bool) -> None:
    for name in ("cut", "idle"):
        await store.sessions.create(SessionRecord(name, "script", native_id=f"native {name}"), [])
    await store.runs.start(RunRecord("r", "cut", "running", None, 1), [GO])
    asked = list[str]()
    await close_open_runs(store, lambda agent: asked.append(agent) or seeds)  # type: ignore[func-returns-value]
    found = [session.native_id if (session := await store.sessions.get(name)) else "" for name in ("cut", "idle")]
    assert (found, asked) == ([None if seeds else "native cut", "native idle"], ["script"])


PROMPT = UserMessage(content="go")
FIRST = 3
"""The number of a run's first event; two events of an earlier run are before it."""


def steered(text: str) -> Steered:
    return Steered(message=UserMessage(content=text))


def call(call_id: str, status: Literal["started", "completed"] = "started") -> ToolCall:
    return ToolCall(id=call_id, name="lookup", status=status, input={})


def found(call_id: str) -> ToolResult:
    return ToolResult(tool_call_id=call_id, output=f"found {call_id}")


RUNS: dict[str, list[LogEvent]] = {
    "steered between messages": [
        AgentToken(text="a"),
        MessageEnd(),
        steered("more"),
        AgentToken(text="b"),
        MessageEnd(),
        steered("and more"),
    ],
    "steered in a message and in a call": [
        AgentToken(text="a"),
        steered("one"),
        call("c"),
        steered("two"),
        AgentToken(text="b"),
        found("c"),
        steered("three"),
        AgentToken(text="c"),
        MessageEnd(),
        AgentToken(text="d"),
    ],
    "parallel calls": [
        AgentToken(text="a"),
        call("1"),
        call("2"),
        call("3"),
        MessageEnd(),
        found("2"),
        found("1"),
        AgentToken(text="b"),
        found("3"),
        AgentToken(text="c"),
    ],
    "a message that is discarded": [
        AgentToken(text="a"),
        call("1"),
        MessageEnd(discarded=True),
        AgentToken(text="b"),
        MessageEnd(),
        AgentToken(text="b"),
        MessageEnd(),
    ],
    "repeated text": [
        AgentToken(text="go"),
        MessageEnd(),
        steered("go"),
        AgentToken(text="go"),
        MessageEnd(),
        steered("go"),
    ],
    "divided text": [
        AgentToken(text="0123456789" * 3),
        steered("more"),
        *[AgentToken(text="0123456789" * 2)] * 5,
        call("c1"),
        AgentToken(text="0123456789" * 5),
        found("c1"),
        *[AgentToken(text="0123456789" * 2)] * 3,
        MessageEnd(discarded=True),
        AgentToken(text="end"),
    ],
}


@pytest.fixture(autouse=True)
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_of_messages, "MAX_TEXT", 40)


class Recorder:
    """Passes the events of a run of session `s` through RunOutput, one at a time."""

    def __init__(self, store: Store) -> None:
        self.log = EventLog("s", store, FIRST)
        meter = Metrics().for_agent("script").run_metrics(session=True)
        self.output = RunOutput(self.log, store, Redactor(), meter, has_history=True)

    async def take(self, event: LogEvent) -> None:
        if isinstance(event, Steered):
            await self.output.steered(event.message)
        else:
            self.output.take(event)
            self.output.flush()


async def stored_messages(path: Path, events: Sequence[LogEvent]) -> list[MessageRow]:
    """Return the stored messages of a run with these events."""
    await asyncio.to_thread(path.mkdir)
    store = await Store.open(store_url(path))
    await store.sessions.create(SessionRecord("s", "script"), [])
    recorder = Recorder(store)
    for event in events:
        await recorder.take(event)
    await recorder.log.written()
    rows = await store.messages.rows("s")
    await store.close()
    return rows


def expected_messages(events: Sequence[LogEvent]) -> list[str]:
    """Return the messages of a history whose run ends after these events."""
    fold = Fold()
    return [m.model_dump_json() for event in [*events, SessionEnd(exit_code=1)] for m in fold.feed(event)]


async def store_killed_run(store: Store, events: Sequence[LogEvent], rows: Sequence[MessageRow], session: str = "s") -> None:
    """Store a session as of a daemon that was killed after it stored these events and messages of a run."""
    await store.sessions.create(SessionRecord(session, "script"), [MessageRow('{"role":"assistant","content":"old"}')])
    earlier = (AgentToken(text="old"), SessionEnd(exit_code=0))
    await store.events.append(EventRow(session, 1, 2, b"\n".join(event.encode() for event in earlier)))
    begin = TurnStart(messages=(PROMPT,)).encode()
    prompt = MessageRow(PROMPT.model_dump_json(), FIRST)
    run = RunRecord(f"run of {session}", session, "running", None, FIRST)
    await store.runs.start(run, [prompt], EventRow(session, FIRST, FIRST, begin))
    if events:
        body = b"\n".join(event.encode() for event in events)
        await store.events.append(EventRow(session, FIRST + 1, FIRST + len(events), body))
    await store.messages.append(session, rows)


async def recover_histories(store: Store, *sessions: str) -> list[list[str]]:
    """Recover, and return the messages after each prompt. A second recovery must change nothing."""
    assert await close_open_runs(store) == len(sessions)
    found = [await store.messages.rows(session) for session in sessions]
    for rows in found:
        assert [row.body for row in rows[:2]] == ['{"role":"assistant","content":"old"}', PROMPT.model_dump_json()]
        numbers = [row.seq for row in rows if row.seq is not None]
        assert numbers == sorted(numbers)
    assert await close_open_runs(store) == 0
    assert [await store.messages.rows(session) for session in sessions] == found
    return [[row.body for row in rows[2:]] for rows in found]


def complete_messages(rows: Sequence[MessageRow], events: int) -> int:
    """Return the number of messages that are complete after `events` events."""
    return sum((row.seq or 0) <= FIRST + events for row in rows)


@pytest.mark.parametrize("name", RUNS)
async def test_no_message_is_lost_or_duplicated_after_any_kill(store: Store, tmp_path: Path, name: str) -> None:
    """Combines each number of stored events with each number of stored messages that these events complete."""
    events, rows = RUNS[name], await stored_messages(tmp_path / "recorded", RUNS[name])
    cuts = {
        f"{n} events, {kept} messages": (n, kept)
        for n in range(len(events) + 1)
        for kept in range(complete_messages(rows, n) + 1)
    }
    for cut, (stored, kept) in cuts.items():
        await store_killed_run(store, events[:stored], rows[:kept], cut)
    histories = dict(zip(cuts, await recover_histories(store, *cuts), strict=True))
    assert histories == {cut: expected_messages(events[:stored]) for cut, (stored, _) in cuts.items()}


@pytest.mark.parametrize("echoed", [True, False])
@pytest.mark.parametrize("given_by_event", [True, False])
async def test_results_stored_before_the_kill_are_in_the_history_once(store: Store, echoed: bool, given_by_event: bool) -> None:
    """The client answers one of two pending calls and the gateway denies the other; the events may repeat their results."""
    await store_killed_run(store, [call("1"), call("2"), Awaiting(calls=())], [])
    asked = AssistantMessage(content=tuple(ToolUseBlock(tool_call_id=c, name="lookup", input={}) for c in "12"))
    await store.messages.append("s", [MessageRow(asked.model_dump_json(), 6)])
    results = [ToolMessage(tool_call_id="1", content="given"), ToolMessage(tool_call_id="2", content="denied")]
    seq = 7 if given_by_event else 6
    begin = EventRow("s", 7, 7, TurnStart(messages=(results[0],)).encode()) if given_by_event else None
    await store.runs.resume("run of s", "s", [MessageRow(result.model_dump_json(), seq) for result in results], begin)
    later: list[OutputEvent] = [found("1"), found("2")] if echoed else []
    later.append(AgentToken(text="b"))
    await store.events.append(EventRow("s", seq + 1, seq + len(later), b"\n".join(event.encode() for event in later)))
    words = AssistantMessage(content="b")
    assert await recover_histories(store, "s") == [[message.model_dump_json() for message in (asked, *results, words)]]


async def test_recovery_after_several_kills(store: Store) -> None:
    """The daemon is killed in consecutive runs."""
    await store_killed_run(store, [AgentToken(text="a"), call("c")], [])
    [first] = await recover_histories(store, "s")
    for number in range(2, 5):
        seq = await store.events.last_seq("s") + 1
        prompt = MessageRow(PROMPT.model_dump_json(), seq)
        begin = EventRow("s", seq, seq, TurnStart(messages=(PROMPT,)).encode())
        await store.runs.start(RunRecord(f"r{number}", "s", "running", None, seq), [prompt], begin)
        await store.events.append(EventRow("s", seq + 1, seq + 1, AgentToken(text=f"words {number}").encode()))
        assert await close_open_runs(store) == 1
    answers = [AssistantMessage(content=f"words {number}").model_dump_json() for number in range(2, 5)]
    later = [body for answer in answers for body in (PROMPT.model_dump_json(), answer)]
    assert (await message_bodies(store, "s"))[2:] == [*first, *later]
    assert [run.state for run in (await store.runs.last_of_each(["s"])).values()] == ["ended"]
