"""The event log of a session over HTTP: `GET /aap/v3/sessions/:id/log`, as a stream and in pages."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gateway.events.log_pages import MAX_PAGE_BYTES
from gateway.store import EventRow, SessionRecord
from tests.support.daemon import Daemon, RunningGateway
from tests.support.named_keys import add_key
from tests.support.requests import create_session, expect_error, send_turn, user_message
from tests.support.sse import arriving

TOOLS = [
    {"thinking": "Let me see."},
    {"text": {"text": "I look it up. " * 5, "chunk": 7}},
    {"tool_call": {"name": "lookup", "input": {"query": "{prompt}"}, "result": "3 hits"}},
    {"text": {"text": "There are three.", "chunk": 3}},
]
GRANTS = [{"name": "lookup", "trust": True}]
STREAM = {"Accept": "text/event-stream"}
WriteScenario = Callable[..., str]


def path(session: str) -> str:
    return f"/aap/v3/sessions/{session}/log"


async def page(client: httpx.AsyncClient, session: str, **query: Any) -> dict[str, Any]:
    answer = await client.get(path(session), params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def pages_back(client: httpx.AsyncClient, session: str, **query: Any) -> list[dict[str, Any]]:
    """Return all pages of a log, the newest first."""
    found = [await page(client, session, **query)]
    while found[-1]["more"]:
        found.append(await page(client, session, before=found[-1]["first"], **query))
    return found


async def pages_forward(client: httpx.AsyncClient, session: str, **query: Any) -> list[dict[str, Any]]:
    found = [await page(client, session, after=0, **query)]
    while found[-1]["more"]:
        found.append(await page(client, session, after=found[-1]["last"], **query))
    return found


@asynccontextmanager
async def follow(client: httpx.AsyncClient, session: str, **query: Any) -> AsyncIterator[AsyncIterator[tuple[str, str, Any]]]:
    """Open the stream of a log and yield its frames: (id, event, data)."""

    async def frames() -> AsyncIterator[tuple[str, str, Any]]:
        async for event in arriving(response):
            yield event.id, event.event, event.json()

    async with client.stream("GET", path(session), params=query, headers=STREAM) as response:
        assert response.status_code == 200, await response.aread()
        yield frames()


async def store_events(portico: RunningGateway, rows: list[list[bytes]]) -> str:
    """Store a session with these events as its log, and return its id."""
    session, first = f"sess_{uuid.uuid4().hex}", 1
    await portico.gateway.store.sessions.create(SessionRecord(session, "echo", created_at=time.time()), [])
    for lines in rows:
        await portico.gateway.store.events.append(EventRow(session, first, first + len(lines) - 1, b"\n".join(lines)))
        first += len(lines)
    return session


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge successive deltas as a client would."""
    found: list[dict[str, Any]] = []
    for entry in events:
        event = entry["event"]
        before = found[-1]["event"] if found else {}
        same = before.get("kind") == event["kind"]
        if same and (
            event["kind"] in ("agent_token", "thinking")
            or (event["kind"] == "tool_output" and before["tool_call_id"] == event["tool_call_id"])
        ):
            found[-1] = {"id": entry["id"], "event": {**event, "text": before["text"] + event["text"]}}
        elif same and event["kind"] == "tool_input" and before["id"] == event["id"]:
            found[-1] = entry
        else:
            found.append(entry)
    return found


async def test_a_page_has_the_stored_events_with_their_run(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    session = (await create_session(portico.client, "echo", "hi"))["sessionId"]
    found = await page(portico.client, session)
    assert [entry["id"] for entry in found["events"]] == [*range(1, len(found["events"]) + 1)]
    kinds = [entry["event"]["kind"] for entry in found["events"]]
    assert kinds[0] == "turn_start" and kinds[-1] == "session_end" and "agent_token" in kinds
    assert found["events"][0]["event"]["messages"] == [user_message("hi")]
    assert (found["first"], found["last"], found["more"], found["seeds"]) == (1, len(kinds), False, 0)
    [run] = found["runs"]
    assert run["firstSeq"] == 1 and run["state"] == "ended" and run["stopReason"] == "end_turn"
    assert run["startedAt"] <= run["endedAt"]
    # A turn that answers a call has the decision.
    for granted in (True, False):
        scenario = write_scenario([{"tool_call": {"id": "a", "name": "lookup"}}, {"text": "end"}])
        options, grants = {"scenario": scenario}, [{"name": "lookup"}]
        session = (await create_session(portico.client, "script", "go", options=options, grants=grants))["sessionId"]
        reason = {} if granted else {"reason": "not now"}
        await send_turn(portico.client, session, {"role": "tool_permission", "toolCallId": "a", "granted": granted, **reason})
        starts = [
            entry["event"] for entry in (await page(portico.client, session))["events"] if entry["event"]["kind"] == "turn_start"
        ]
        decision = {"call_id": "a", "granted": granted, "reason": reason.get("reason"), "choice": None}
        assert [start["permissions"] for start in starts] == [[], [decision]], granted


async def test_pages_have_whole_turns_and_each_event_once(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, "echo", "turn 0"))["sessionId"]
    for n in range(1, 8):
        await send_turn(portico.client, session, f"turn {n}")
    whole = (await page(portico.client, session, after=0))["events"]
    for limit in (1, 2, 5, 9, 1000):
        back = await pages_back(portico.client, session, limit=limit)
        assert [entry for found in reversed(back) for entry in found["events"]] == whole
        forward = await pages_forward(portico.client, session, limit=limit)
        assert [entry for found in forward for entry in found["events"]] == whole
        for found in back + forward if limit > 1 else ():
            assert found["events"][0]["event"]["kind"] == "turn_start"
            assert found["events"][-1]["event"]["kind"] == "session_end"
            assert [run["firstSeq"] for run in found["runs"]] == [
                entry["id"] for entry in found["events"] if entry["event"]["kind"] == "turn_start"
            ]
    # A turn that is too long is divided.
    token = [b'{"kind":"agent_token","text":"%d "}' % n for n in range(100)]
    rows = [[b'{"kind":"turn_start","messages":[],"permissions":[]}', *token], token]
    session = await store_events(portico, rows)
    back = await pages_back(portico.client, session, limit=10)
    assert [len(found["events"]) for found in back] == [10] * 17 + [31]
    assert [entry["id"] for found in reversed(back) for entry in found["events"]] == [*range(1, 202)]
    forward = await pages_forward(portico.client, session, limit=10)
    assert [len(found["events"]) for found in forward] == [10] * 17 + [31]
    # A page is bounded in bytes.
    line = b'{"kind":"agent_token","text":"%b"}' % (b"x" * 1000)
    rows = [[line] * 100 for _ in range(3 * MAX_PAGE_BYTES // 100_000)]
    session = await store_events(portico, rows)
    for pages in (
        await pages_back(portico.client, session, merge="true"),
        await pages_forward(portico.client, session, merge="true"),
    ):
        sizes = [sum(len(entry["event"]["text"]) for entry in found["events"]) for found in pages]
        assert len(sizes) == 3 and max(sizes) < MAX_PAGE_BYTES + 200_000
        assert sum(sizes) == 100_000 * len(rows)
        assert sorted(found["first"] for found in pages) == [1, *sorted(found["last"] + 1 for found in pages)[:-1]]


async def test_merged_pages_say_the_same_as_the_events(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    options = {"scenario": write_scenario(TOOLS)}
    session = (await create_session(portico.client, "script", "who?", options=options, grants=GRANTS))["sessionId"]
    await send_turn(portico.client, session, "again")
    plain = (await page(portico.client, session, after=0))["events"]
    merged = (await page(portico.client, session, after=0, merge="true"))["events"]
    assert len(merged) < len(plain)
    assert merged == joined(plain)
    for limit in (1, 3, 4, 100):
        back = await pages_back(portico.client, session, limit=limit, merge="true")
        assert joined([entry for found in reversed(back) for entry in found["events"]]) == merged

    # Each kind of delta is merged with its own.
    def encoded(*events: dict[str, Any]) -> list[bytes]:
        return [json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() for event in events]

    nasty = 'quote " backslash \\ \u2028 \n tab\t {"kind":"agent_token","text":"x"} ,"text":" é 😀'
    lines = encoded(
        {"kind": "turn_start", "messages": [], "permissions": []},
        {"kind": "agent_token", "text": nasty},
        {"kind": "agent_token", "text": ""},
        {"kind": "agent_token", "text": nasty},
        {"kind": "thinking", "text": "hm "},
        {"kind": "thinking", "text": "hm"},
        {"kind": "agent_token", "text": "so"},
        {"kind": "tool_input", "id": "a", "name": "f", "input": {"x": 1}},
        {"kind": "tool_input", "id": "a", "name": "f", "input": {"x": 1, "y": 2}},
        {"kind": "tool_input", "id": "b", "name": "f", "input": {}},
        {"kind": "tool_output", "tool_call_id": 'a","text":"', "text": "1"},
        {"kind": "tool_output", "tool_call_id": 'a","text":"', "text": nasty},
        {"kind": "tool_output", "tool_call_id": "a", "text": "3"},
        {"kind": "message_end", "discarded": False},
        {"kind": "message_end", "discarded": False},
    )
    # One row an event, and all in one row.
    for rows in ([[line] for line in lines], [lines]):
        session = await store_events(portico, rows)
        plain = (await page(portico.client, session, after=0))["events"]
        assert [entry["event"] for entry in plain] == [json.loads(line) for line in lines]
        merged = (await page(portico.client, session, after=0, merge="true"))["events"]
        assert merged == joined(plain)
        assert [entry["id"] for entry in merged] == [1, 4, 6, 7, 9, 10, 12, 13, 14, 15]
        assert (await page(portico.client, session, merge="true"))["events"] == merged


async def test_empty_logs_and_positions_outside(portico: RunningGateway) -> None:
    # An empty log.
    history = [user_message("hi"), {"role": "assistant", "content": "Hello."}]
    body = {"agent": {"name": "echo"}, "messages": history}
    session = (await portico.client.post("/aap/v3/sessions", json=body)).json()["sessionId"]
    empty = {"events": [], "first": 1, "last": 0, "more": False, "runs": [], "seeds": 2}
    assert await page(portico.client, session) == empty
    assert await page(portico.client, session, after=0) == empty
    assert await page(portico.client, session, after=7) == empty
    assert await page(portico.client, session, before=7) == empty
    await send_turn(portico.client, session, "next")
    assert (await page(portico.client, session))["seeds"] == 2
    # Positions outside of the log.
    session = (await create_session(portico.client, "echo", "hi"))["sessionId"]
    whole = await page(portico.client, session)
    assert await page(portico.client, session, before=2**62) == whole
    after = await page(portico.client, session, after=2**62)
    assert (after["events"], after["first"], after["last"]) == ([], whole["last"] + 1, whole["last"])
    for before in (0, 1):
        assert (await page(portico.client, session, before=before))["events"] == []
    # Bad pages.
    for query, text in (
        ({"before": "1", "after": "1"}, "one direction"),
        ({"before": "-1"}, "before"),
        ({"after": "x"}, "after"),
        ({"after": str(2**63)}, "after"),
        ({"limit": "0"}, "limit"),
        ({"limit": "5001"}, "limit"),
        ({"merge": "maybe"}, "merge"),
    ):
        session = (await create_session(portico.client, "echo", "hi"))["sessionId"]
        assert text in await expect_error(portico.client.get(path(session), params=query), 400), (query, text)
    # Bad streams.
    session = (await create_session(portico.client, "echo", "hi"))["sessionId"]
    client = portico.client
    assert "goes forward" in await expect_error(client.get(path(session), params={"before": 1}, headers=STREAM), 400)
    assert "no event 999" in await expect_error(client.get(path(session), params={"after": 999}, headers=STREAM), 400)
    for number in ("x", "1.1", "-1", "9" * 30):
        wrong = {**STREAM, "Last-Event-ID": number}
        assert "Last-Event-ID" in await expect_error(client.get(path(session), headers=wrong), 400)
    assert "no session" in await expect_error(client.get(path("sess_x"), headers=STREAM), 404)
    assert "no session" in await expect_error(client.get(path("sess_x")), 404)


async def test_a_stream_has_every_event_and_ends_with_the_session(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    options = {"scenario": write_scenario(TOOLS)}
    session = (await create_session(portico.client, "script", "who?", options=options, grants=GRANTS))["sessionId"]
    async with follow(portico.client, session, after=0) as frames, follow(portico.client, session) as later:
        await send_turn(portico.client, session, "again")
        expected = (await page(portico.client, session, after=0))["events"]
        second = next(entry["id"] for entry in expected[1:] if entry["event"]["kind"] == "turn_start")
        for entry in expected:
            assert await anext(frames) == (str(entry["id"]), "message", entry["event"])
        for entry in expected[second - 1 :]:
            assert await anext(later) == (str(entry["id"]), "message", entry["event"])
        assert (await portico.client.delete(f"/aap/v3/sessions/{session}")).status_code == 204
        for stream in (frames, later):
            rest = [(event, data) async for _, event, data in stream]
            assert rest == [("deleted", {"sessionId": session})]


async def test_a_stream_goes_on_after_the_last_event_id(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, "echo", "hi"))["sessionId"]
    expected = (await page(portico.client, session))["events"]
    last = {**STREAM, "Last-Event-ID": "2"}
    async with portico.client.stream("GET", path(session), params={"after": 0}, headers=last) as response:
        events = arriving(response)
        for entry in expected[2:]:
            assert int((await anext(events)).id) == entry["id"]


async def test_a_page_and_the_stream_after_it_lack_nothing_while_the_agent_works(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    options = {"scenario": write_scenario([{"events": {"count": 3000, "text": "{n} "}}])}
    body = {"agent": {"name": "script", "options": options}}
    session = (await portico.client.post("/aap/v3/sessions", json=body)).json()["sessionId"]
    turn = {"messages": [user_message("go")], "stream": "delta"}
    texts: list[str] = []
    async with portico.client.stream("POST", f"/aap/v3/sessions/{session}/turns", json=turn) as answer:
        assert answer.status_code == 200
        found = await page(portico.client, session, limit=5000, merge="true")
        texts += [entry["event"]["text"] for entry in found["events"] if entry["event"]["kind"] == "agent_token"]
        # The whole run where the agent was quicker: the stream has no further event then, and does not end.
        over = any(entry["event"]["kind"] == "session_end" for entry in found["events"])
        async with follow(portico.client, session, after=found["last"] - over) as frames:
            expected = found["last"] + (not over)
            async for number, _, event in frames:
                assert int(number) == expected
                expected += 1
                texts += [event["text"]] if event["kind"] == "agent_token" else []
                if event["kind"] == "session_end":
                    break
    assert "".join(texts) == "".join(f"{n} " for n in range(3000))


async def test_the_log_of_another_key_is_not_found(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, "echo", "hi"))["sessionId"]
    other = {"Authorization": f"Bearer {await add_key(portico.gateway, 'other')}"}
    for headers in (other, {**other, **STREAM}):
        assert "no session" in await expect_error(portico.client.get(path(session), headers=headers), 404)
    assert "API key" in await expect_error(portico.client.get(path(session), headers={"Authorization": "Bearer x"}), 401)


async def test_a_kill_in_the_middle_of_a_run_leaves_a_gap(daemon: Daemon, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"events": 30}, {"hang": {"ignore_term": True}}])
    await daemon.start()
    seen: list[tuple[str, Any]] = []
    async with daemon.client() as client:
        body = {"agent": {"name": "script", "options": {"scenario": name}}}
        session = (await client.post("/aap/v3/sessions", json=body)).json()["sessionId"]
        async with follow(client, session, after=0) as frames:
            turn = {"messages": [user_message("go")], "stream": "delta"}
            async with client.stream("POST", f"/aap/v3/sessions/{session}/turns", json=turn):
                async for number, _, event in frames:
                    seen.append((number, event))
                    if len(seen) == 15:
                        await daemon.kill()
                        break
    await daemon.start()
    async with daemon.client() as client:
        found = await page(client, session, after=0)
        events = [(str(entry["id"]), entry["event"]) for entry in found["events"]]
        kinds = [event["kind"] for _, event in events]
        assert (kinds.count("gap"), kinds[-3:]) == (1, ["gap", "error", "session_end"])
        common = min(len(events) - 3, len(seen))
        assert events[:common] == seen[:common]
        gap, end = events[-3], events[-1]
        assert gap[1]["to"] == int(gap[0]) == int(end[0]) - 2
        assert gap[1]["from"] == len(events) - 2
        assert gap[1]["reason"]
        assert [run["state"] for run in found["runs"]] == ["ended"]
        assert (await page(client, session))["events"] == found["events"]
        # The same in pages that begin and end at the gap.
        for limit in (1, 2, 3):
            back = await pages_back(client, session, limit=limit)
            assert [entry for one in reversed(back) for entry in one["events"]] == found["events"]
            forward = await pages_forward(client, session, limit=limit)
            assert [entry for one in forward for entry in one["events"]] == found["events"]
        merged = (await page(client, session, merge="true"))["events"]
        assert merged == joined(found["events"])
        # The stream of a reader goes on with the last number that it has seen.
        async with follow(client, session, after=seen[-1][0]) as frames:
            rest = [await anext(frames) for _ in range(len(events) - common if common < len(seen) else len(events) - len(seen))]
        assert [event["kind"] for _, _, event in rest[-2:]] == ["error", "session_end"]
        assert sum(event["kind"] == "gap" for _, _, event in rest) == 1
