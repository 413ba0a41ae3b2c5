"""The list of sessions, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx

from gateway.store import SessionRecord
from tests.daemon import Running
from tests.gateway.talk import alive, create, error, frames, history, look, opening, pid_in, say, until, user

Scene = Callable[..., str]


async def _fill(portico: Running, count: int, first: int = 0) -> list[str]:
    """Sessions without a turn, many at once; the times of three of them are the same."""
    ids = [f"sess_{number:05}" for number in range(first, first + count)]
    for number, session in enumerate(ids, first):
        await portico.gateway.store.create_session(SessionRecord(session, "echo", created_at=float(number // 3)), [])
    return ids


async def _walk(client: httpx.AsyncClient, between: Callable[[], object] | None = None, **query: int) -> list[list[str]]:
    pages: list[list[str]] = []
    after: dict[str, str] = {}
    while True:
        body = (await client.get("/sessions", params={**query, **after})).json()
        pages.append(body["sessions"])
        if "next" not in body:
            assert list(body) == ["sessions"]
            return pages
        after = {"after": body["next"]}
        if between:
            await between()  # type: ignore[misc]


async def test_without_sessions_the_list_is_empty(portico: Running) -> None:
    assert (await portico.client.get("/sessions")).json() == {"sessions": []}


async def test_every_session_comes_once_newest_first(portico: Running) -> None:
    ids = await _fill(portico, 250)
    pages = await _walk(portico.client)
    assert [len(page) for page in pages] == [100, 100, 50]
    assert [session for page in pages for session in page] == ids[::-1]
    assert [len(page) for page in await _walk(portico.client, limit=125)] == [125, 125]
    assert [len(page) for page in await _walk(portico.client, limit=1000)] == [250]


async def test_sessions_that_are_made_in_between_disturb_nothing(portico: Running) -> None:
    ids = await _fill(portico, 250)

    async def more() -> None:
        await create(portico.client, "echo")

    pages = await _walk(portico.client, more, limit=60)
    assert [session for page in pages for session in page] == ids[::-1]
    assert len([session for page in await _walk(portico.client) for session in page]) == 254


async def test_a_cursor_survives_the_deletion_of_its_session(portico: Running) -> None:
    ids = await _fill(portico, 10)
    first = (await portico.client.get("/sessions?limit=4")).json()
    assert (await portico.client.delete(f"/session/{first['sessions'][-1]}")).status_code == 204
    rest = (await portico.client.get("/sessions", params={"after": first["next"]})).json()
    assert rest == {"sessions": ids[5::-1]}


async def test_new_sessions_stand_first(portico: Running) -> None:
    made = [(await create(portico.client, "echo"))["sessionId"] for _ in range(3)]
    assert (await portico.client.get("/sessions")).json()["sessions"] == made[::-1]


async def test_a_cursor_of_somebody_elses_is_refused(portico: Running) -> None:
    for cursor in ("", "junk", "AAAA", "bm9wZQ==", "MS4wIHggeQ==", "%ff", "é", "sess_1"):
        assert "after" in await error(portico.client.get("/sessions", params={"after": cursor}), 400)


async def test_a_limit_out_of_bounds_is_refused(portico: Running) -> None:
    for limit in ("0", "-1", "1001", "many", ""):
        assert "limit" in await error(portico.client.get("/sessions", params={"limit": limit}), 400)


async def test_a_deleted_session_is_gone(portico: Running) -> None:
    session = (await create(portico.client, "echo"))["sessionId"]
    answer = await portico.client.delete(f"/session/{session}")
    assert (answer.status_code, answer.content) == (204, b"")
    await error(portico.client.get(f"/session/{session}"), 404)
    await error(portico.client.post(f"/session/{session}", json={"messages": [user()]}), 404)
    await error(portico.client.delete(f"/session/{session}"), 404)
    assert (await portico.client.get("/sessions")).json() == {"sessions": []}


async def test_deleting_ends_a_run_with_its_agent(portico: Running, scene: Scene, tmp_path: Path) -> None:
    steps = [{"text": "a"}, {"spawn": {"seconds": 60, "new_session": True, "pid_file": "stray"}}, {"hang": {"ignore_term": True}}]
    body = opening(options={"scenario": scene(steps)}, stream="delta")
    async with portico.client.stream("PUT", "/session", json=body) as answer:
        stray = await pid_in(tmp_path / "scenes" / "stray")
        session = (await portico.client.get("/sessions")).json()["sessions"][0]
        (_, agent, _), *_ = await portico.gateway.store.processes()
        assert alive(agent)
        assert (await portico.client.delete(f"/session/{session}")).status_code == 204
        assert not alive(agent)
        assert not alive(stray)
        events = frames((await answer.aread()).decode())
    assert events[-1][0] == "turn_stop"
    assert events[-1][1]["stopReason"] == "error"
    await error(portico.client.get(f"/session/{session}"), 404)
    assert not await portico.gateway.store.processes()
    assert not await portico.gateway.store.events(session, 0)


async def test_a_session_that_is_deleted_while_others_ask_for_it(portico: Running) -> None:
    for _ in range(5):
        session = (await create(portico.client, "echo"))["sessionId"]
        answers = await asyncio.gather(
            portico.client.delete(f"/session/{session}"),
            portico.client.post(f"/session/{session}", json={"messages": [user()]}),
            portico.client.delete(f"/session/{session}"),
            portico.client.post(f"/session/{session}", json={"messages": [user()]}),
            portico.client.get(f"/session/{session}"),
        )
        codes = [answer.status_code for answer in answers]
        assert {codes[0], codes[2]} == {204, 404}
        assert {codes[1], codes[3]} <= {200, 404, 409}
        assert codes[4] in (200, 404)
    await until(lambda: _nothing_runs(portico))


async def _nothing_runs(portico: Running) -> bool:
    return not await portico.gateway.store.processes()


async def test_a_turn_while_one_runs_is_refused(portico: Running, scene: Scene) -> None:
    name = scene({"when": "go", "steps": [{"text": "a"}, {"hang": True}]}, [{"text": "b"}])
    session = (await create(portico.client, options={"scenario": name}))["sessionId"]
    body = {"messages": [user("go")], "stream": "delta"}
    async with portico.client.stream("POST", f"/session/{session}", json=body) as answer:
        assert answer.status_code == 200
        before = await look(portico.client, session)
        assert before["state"] == "running"
        for message in (user(), {"role": "tool", "toolCallId": "x", "content": "y"}):
            text = await error(portico.client.post(f"/session/{session}", json={"messages": [message]}), 409)
            assert "turn_stop" in text
        config = {"messages": [user()], "agent": {"options": {"pace": "fast"}}}
        await error(portico.client.post(f"/session/{session}", json=config), 409)
        assert await look(portico.client, session) == before


async def test_of_turns_at_the_same_time_one_runs(portico: Running, scene: Scene) -> None:
    name = scene([{"text": "a"}, {"delay": 0.3}])
    session = (await create(portico.client, options={"scenario": name, "pace": "fast"}))["sessionId"]
    body = {"messages": [user("again")], "agent": {"options": {"pace": "recorded"}}}
    answers = await asyncio.gather(*(portico.client.post(f"/session/{session}", json=body) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    assert [message["role"] for message in await history(portico.client, session)] == ["user", "assistant"] * 2
    assert (await say(portico.client, session, "more"))["stopReason"] == "end_turn"
