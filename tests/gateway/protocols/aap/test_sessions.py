"""Listing and deleting sessions, and concurrent turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from gateway.store import SessionRecord
from tests.support import cluster
from tests.support.aap_client import AapClient
from tests.support.daemon import RunningGateway
from tests.support.requests import expect_error, is_alive, read_pid, user_message
from tests.support.sse import parse_frames
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


async def _fill(portico: RunningGateway, count: int, first: int = 0) -> list[str]:
    """Stores sessions without turns. Groups of three have the same creation time."""
    ids = [f"sess_{number:05}" for number in range(first, first + count)]
    for number, session in enumerate(ids, first):
        await portico.gateway.store.sessions.create(SessionRecord(session, "echo", created_at=float(number // 3)), [])
    return ids


async def _all_pages(aap: AapClient, between: Callable[[], object] | None = None, **query: int) -> list[list[str]]:
    """All pages of the list; calls `between` after each page."""
    pages: list[list[str]] = []
    after: dict[str, str] = {}
    while True:
        body = await aap.list_sessions(**query, **after)
        pages.append(body["sessions"])
        if "next" not in body:
            assert list(body) == ["sessions"]
            return pages
        after = {"after": body["next"]}
        if between:
            await between()  # type: ignore[misc]


async def test_every_session_is_listed_once_newest_first(portico: RunningGateway, aap: AapClient) -> None:
    assert await aap.list_sessions() == {"sessions": []}
    ids = await _fill(portico, 250)
    pages = await _all_pages(aap)
    assert [len(page) for page in pages] == [100, 100, 50]
    assert [session for page in pages for session in page] == ids[::-1]
    assert [len(page) for page in await _all_pages(aap, limit=125)] == [125, 125]
    assert [len(page) for page in await _all_pages(aap, limit=1000)] == [250]

    async def create_one() -> None:
        await aap.create_session("echo")

    pages = await _all_pages(aap, create_one, limit=60)
    assert [session for page in pages for session in page] == ids[::-1], "sessions of meanwhile do not change the pages"
    assert len([session for page in await _all_pages(aap) for session in page]) == 254


async def test_cursors_and_limits_of_the_list(portico: RunningGateway, aap: AapClient) -> None:
    # A cursor survives the deletion of its session.
    ids = await _fill(portico, 10)
    first = await aap.list_sessions(limit=4)
    assert (await aap.delete(first["sessions"][-1])).status_code == 204
    rest = await aap.list_sessions(after=first["next"])
    assert rest == {"sessions": ids[5::-1]}
    # Invalid cursor is refused.
    for cursor in ("", "junk", "AAAA", "bm9wZQ==", "MS4wIHggeQ==", "%ff", "é", "sess_1"):
        assert "after" in await expect_error(aap.http.get(aap.base.url + "/sessions", params={"after": cursor}), 400)
    # Limit out of bounds is refused.
    for limit in ("0", "-1", "1001", "many", ""):
        assert "limit" in await expect_error(aap.http.get(aap.base.url + "/sessions", params={"limit": limit}), 400)


async def test_deleted_session_is_not_found(aap: AapClient) -> None:
    # New sessions are listed first.
    made = [(await aap.create_session("echo"))["sessionId"] for _ in range(3)]
    assert (await aap.list_sessions())["sessions"] == made[::-1]
    # Deleted session is not found.
    session = (await aap.create_session("echo"))["sessionId"]
    answer = await aap.delete(session)
    assert (answer.status_code, answer.content) == (204, b"")
    await expect_error(aap.get(session), 404)
    await expect_error(aap.post(session, {"messages": [user_message()]}), 404)
    await expect_error(aap.delete(session), 404)
    assert (await aap.list_sessions())["sessions"] == made[::-1]


async def test_delete_stops_the_run_and_its_agent(
    portico: RunningGateway, aap: AapClient, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    steps = [{"text": "a"}, {"spawn": {"seconds": 60, "new_session": True, "pid_file": "stray"}}, {"hang": {"ignore_term": True}}]
    session = (await aap.create_session(options={"scenario": write_scenario({"when": "go", "steps": steps}, [{"text": "b"}])}))[
        "sessionId"
    ]
    async with aap.stream(session, user_message("go")) as answer:
        stray = await read_pid(tmp_path / "scenes" / "stray")
        (_, agent, _), *_ = await portico.gateway.store.processes.all()
        assert is_alive(agent)
        assert (await aap.delete(session)).status_code == 204
        assert not is_alive(agent)
        assert not is_alive(stray)
        events = parse_frames((await answer.aread()).decode())
    assert events[-1][0] == "turn_stop"
    assert events[-1][1]["stopReason"] == "error"
    await expect_error(aap.get(session), 404)
    assert not await portico.gateway.store.processes.all()
    assert not await portico.gateway.store.events.read(session, 0)


@pytest.mark.usefixtures("also_in_a_cluster")
async def test_concurrent_requests_for_a_deleted_session(portico: RunningGateway, aap: AapClient) -> None:
    for _ in range(5):
        session = (await aap.create_session("echo"))["sessionId"]
        answers = await asyncio.gather(
            aap.delete(session),
            aap.post(session, {"messages": [user_message()]}),
            aap.delete(session),
            aap.post(session, {"messages": [user_message()]}),
            aap.get(session),
        )
        codes = [answer.status_code for answer in answers]
        assert {codes[0], codes[2]} == {204, 404}
        assert {codes[1], codes[3]} <= {200, 404, 409}
        assert codes[4] in (200, 404)
    await wait_until(lambda: _nothing_runs(portico))


async def _nothing_runs(portico: RunningGateway) -> bool:
    return not await portico.gateway.store.processes.all()


async def test_turn_during_a_run_is_refused(portico: RunningGateway, aap: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario({"when": "go", "steps": [{"text": "a"}, {"hang": True}]}, [{"text": "b"}])
    session = (await aap.create_session(options={"scenario": name}))["sessionId"]
    async with aap.stream(session, user_message("go")) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if '"a"' in line:
                break
        await cluster.stored(portico.gateway, session)
        before = await aap.get_session(session)
        assert before["state"] == "running"
        for message in (user_message(), {"role": "tool", "toolCallId": "x", "content": "y"}):
            text = await expect_error(aap.post(session, {"messages": [message]}), 409)
            assert "wait for its end" in text
        config = {"messages": [user_message()], "agent": {"options": {"pace": "fast"}}}
        await expect_error(aap.post(session, config), 409)
        assert await aap.get_session(session) == before


async def test_one_of_several_concurrent_turns_runs(aap: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "a"}, {"delay": 0.3}])
    session = (await aap.create_session(options={"scenario": name, "pace": "fast"}))["sessionId"]
    body = {"messages": [user_message("again")], "agent": {"options": {"pace": "recorded"}}}
    answers = await asyncio.gather(*(aap.post(session, body) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    assert [message["role"] for message in await aap.get_history(session)] == ["user", "assistant"] * 2
    assert (await aap.send_turn(session, "more"))["stopReason"] == "end_turn"


async def test_session_has_a_title_times_and_the_usage_of_all_turns(aap: AapClient, write_scenario: WriteScenario) -> None:
    usage = {"input_tokens": 1, "output_tokens": 2, "cache_read": 3, "cache_write": 4}
    cost = {"when": "cost", "steps": [{"usage": {"output_tokens": 8, "reasoning_tokens": 5, "cost_usd": 0.25}}]}
    calls = {"when": "call", "steps": [{"usage": usage}, {"tool_call": {"id": "c", "name": "lookup", "input": {"query": "q"}}}]}
    name = write_scenario(cost, calls, {"when": "title", "steps": [{"title": "The agent's  title"}]}, [{"text": "x"}])
    session = (await aap.create_session("script", "Do\n this", options={"scenario": name}))["sessionId"]
    before = await aap.get_session(session)
    assert (before["title"], "usage" in before) == ("Do this", False)
    assert before["createdAt"] <= before["updatedAt"]
    assert datetime.fromisoformat(before["updatedAt"]).tzinfo is not None
    # A turn that waits for the client counts too.
    await aap.send_turn(session, "call", agent={"tools": [{"name": "lookup"}]})
    await aap.send_turn(session, "cost")
    await aap.send_turn(session, "title")
    after = await aap.get_session(session)
    assert (after["title"], after["createdAt"]) == ("The agent's title", before["createdAt"])
    assert after["updatedAt"] > before["updatedAt"]
    assert after["usage"] == {
        "inputTokens": 1,
        "outputTokens": 10,
        "cacheReadTokens": 3,
        "cacheWriteTokens": 4,
        "reasoningTokens": 5,
        "costUsd": 0.25,
    }


@pytest.mark.usefixtures("also_in_a_cluster")
async def test_session_has_the_usage_of_the_turn_at_work(
    portico: RunningGateway, aap: AapClient, write_scenario: WriteScenario
) -> None:
    used = {"usage": {"input_tokens": 1, "output_tokens": 2, "cost_usd": 0.1}}
    first, work = {"when": "^first$", "steps": [used, {"text": "x"}]}, [used, {"text": "x"}, {"delay": 60}]
    name = write_scenario(first, {"when": "^work$", "steps": work})
    session = (await aap.create_session("script", "first", options={"scenario": name}))["sessionId"]
    async with aap.stream(session, user_message("work")) as response:
        async for line in response.aiter_lines():
            if "text_delta" in line:
                break
        await cluster.stored(portico.gateway, session)
        during = await aap.get_session(session)
        assert (during["state"], during["usage"]["inputTokens"], during["usage"]["costUsd"]) == ("running", 2, 0.2)
        if cluster.placement() is None:
            # A list is read from the store, which has the usage of a turn with its end; only the session's node knows it
            # before.
            [listed] = (await aap.http.get(f"{aap.base.url}/sessions")).json()["sessions"]
            assert listed["x-portico"]["usage"] == during["usage"]
        await aap.http.post(aap.path(session) + "/cancel")
    after = await aap.wait_until_idle(session)
    assert after["usage"] == during["usage"]
