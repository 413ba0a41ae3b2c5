"""AAP v3 beyond the protocol: a user's title, forks, messages by their positions, and the order and filters of the list."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.protocols.acp.session_info import SessionInfoUpdates
from gateway.store import MessageRow, RunRecord, SessionRecord
from tests.gateway.protocols.aap.test_session_updates import GRANT, NOTE, SESSIONS, create, info, turn, until, updates
from tests.support.acp_client import on_websocket
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import expect_error, user_message

WriteScenario = Callable[..., str]


async def history(client: httpx.AsyncClient, session: str) -> list[dict[str, Any]]:
    answer = await client.get(f"{SESSIONS}/{session}/history", params={"type": "full"})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["history"]["full"])


async def messages(client: httpx.AsyncClient, session: str, **query: Any) -> dict[str, Any]:
    answer = await client.get(f"{SESSIONS}/{session}/messages", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def fork(client: httpx.AsyncClient, session: str, headers: dict[str, str] | None = None, **body: Any) -> str:
    answer = await client.post(f"{SESSIONS}/{session}/fork", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    assert list(answer.json()) == ["sessionId"]
    return str(answer.json()["sessionId"])


async def rename(client: httpx.AsyncClient, session: str, title: str | None) -> dict[str, Any]:
    answer = await client.patch(f"{SESSIONS}/{session}", json={"title": title})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def ids(client: httpx.AsyncClient, **query: Any) -> list[str]:
    """Return the ids of all pages of the list."""
    found: list[str] = []
    while True:
        answer = await client.get(SESSIONS, params=query)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        found += [session["sessionId"] for session in body["sessions"]]
        if "next" not in body:
            return found
        query["after"] = body["next"]


# -- titles ---------------------------------------------------------------------------------------------------------------


async def test_the_users_title_precedes_that_of_the_agent(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"title": "Of the agent"}], [{"title": "Of the agent, later"}])
    client = portico.client
    session = await create(client, "script", name)
    assert (await rename(client, session, "  Mine \n all mine "))["x-portico"]["title"] == "Mine all mine"
    await turn(client, session, user_message("go"))
    await turn(client, session, user_message("go"))
    assert (await info(client, session))["x-portico"]["title"] == "Mine all mine"
    async with updates(client) as stream:
        renamed = await rename(client, session, None)
        assert renamed["x-portico"]["title"] == "Of the agent, later"
        assert await until(stream, lambda own: True) == renamed
    assert (await rename(client, session, " "))["x-portico"]["title"] == "Of the agent, later"
    # A bad title changes nothing.
    for body in ({}, {"title": 1}, {"title": "x" * 201}, {"title": ["a"]}, []):
        session = await create(portico.client)
        await rename(portico.client, session, "before")
        await expect_error(portico.client.patch(f"{SESSIONS}/{session}", json=body), 400)
        assert (await info(portico.client, session))["x-portico"]["title"] == "before", body


async def test_an_acp_client_is_notified_of_a_title(portico: RunningGateway) -> None:
    async with on_websocket(portico.url, "echo", KEY) as client:
        await client.initialize()
        session = (await client.request("session/new", {"cwd": ".", "mcpServers": []}))["sessionId"]
        await rename(portico.client, session, "From the list")
        await client.until(lambda _: [one for one in client.updates(session) if one.get("title") == "From the list"])
        [listed] = (await client.request("session/list"))["sessions"]
        assert listed["title"] == "From the list"


async def test_an_acp_client_is_notified_of_a_title_of_the_moment_in_which_it_opens_the_session(
    portico: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = SessionInfoUpdates.load_metadata

    async def renamed_before(self: SessionInfoUpdates) -> None:
        """Before the client's view listens to changes, as by another client at this moment."""
        await portico.gateway.store.session_metadata.update(self._session.id, chosen_title="From the list")
        await load(self)

    monkeypatch.setattr(SessionInfoUpdates, "load_metadata", renamed_before)
    async with on_websocket(portico.url, "echo", KEY) as client:
        await client.initialize()
        session = (await client.request("session/new", {"cwd": ".", "mcpServers": []}))["sessionId"]
        await client.until(lambda _: [one for one in client.updates(session) if one.get("title") == "From the list"])


# -- messages -------------------------------------------------------------------------------------------------------------


async def test_messages_by_position(portico: RunningGateway) -> None:
    before = [user_message("hi"), {"role": "assistant", "content": "Hello."}]
    body = {"agent": {"name": "echo"}, "messages": before}
    session = (await portico.client.post(SESSIONS, json=body)).json()["sessionId"]
    await turn(portico.client, session, user_message("one"))
    await turn(portico.client, session, user_message("two"))
    found = await messages(portico.client, session)
    assert found["total"] == 6
    assert [one["message"] for one in found["messages"]] == await history(portico.client, session)
    assert [one["position"] for one in found["messages"]] == [*range(6)]
    numbers = [one["seq"] for one in found["messages"]]
    assert numbers[:3] == [None, None, 1] and numbers[2:] == sorted(numbers[2:])
    assert (await messages(portico.client, session, first=3, limit=2))["messages"] == found["messages"][3:5]
    assert (await messages(portico.client, session, first=6)) == {"messages": [], "total": 6}
    # A page of long messages is bounded.
    session, store = f"sess_{uuid.uuid4().hex}", portico.gateway.store
    await store.sessions.create(SessionRecord(session, "echo", created_at=time.time()), [])
    await store.messages.append(session, [MessageRow(json.dumps({"role": "user", "content": "x" * 400_000}))] * 10)
    page = await messages(portico.client, session, limit=1000)
    assert (len(page["messages"]), page["total"]) == (3, 10)
    # Bad positions.
    for query in ({"first": -1}, {"first": "x"}, {"limit": 0}, {"limit": 1001}, {"first": 2**40}):
        session = await create(portico.client)
        await expect_error(portico.client.get(f"{SESSIONS}/{session}/messages", params=query), 400)


async def test_ten_thousand_messages_in_pages(portico: RunningGateway) -> None:
    session, store = f"sess_{uuid.uuid4().hex}", portico.gateway.store
    await store.sessions.create(SessionRecord(session, "echo", created_at=time.time()), [])
    rows = [MessageRow(json.dumps({"role": "user", "content": f"{n} {'x' * 300}"}), n + 1) for n in range(10_000)]
    await store.messages.append(session, rows)
    seen: list[int] = []
    slowest = 0.0
    while len(seen) < 10_000:
        began = time.perf_counter()
        page = await messages(portico.client, session, first=len(seen), limit=1000)
        slowest = max(slowest, time.perf_counter() - began)
        assert page["total"] == 10_000
        assert [one["message"]["content"].split()[0] for one in page["messages"]] == [
            str(one["position"]) for one in page["messages"]
        ]
        seen += [one["position"] for one in page["messages"]]
    assert seen == [*range(10_000)]
    # It takes 10 ms on a machine that is idle.
    assert slowest < 2


# -- forks ----------------------------------------------------------------------------------------------------------------


async def test_a_fork_has_the_messages_up_to_an_event(portico: RunningGateway) -> None:
    client = portico.client
    session = await create(client)
    for text in ("one", "two", "three"):
        await turn(client, session, user_message(text))
    whole = (await messages(client, session))["messages"]
    bodies = [one["message"] for one in whole]
    for count in range(len(whole) + 1):
        forked = await fork(client, session, messages=count)
        assert await history(client, forked) == bodies[:count]
    third = whole[4]["seq"]
    forked = await fork(client, session, after=third - 1)
    assert await history(client, forked) == bodies[:4]
    found = await info(client, forked)
    assert found["x-portico"]["forkedFrom"] == session and found["x-portico"]["lastSeq"] == 0
    assert found["agent"] == (await info(client, session))["agent"]
    # They are independent.
    await turn(client, forked, user_message("another"))
    assert await history(client, session) == bodies
    assert [one["content"] for one in (await history(client, forked))[4:]] == ["another", "another"]
    assert await history(client, await fork(client, session)) == bodies
    assert await history(client, await fork(client, session, after=0)) == []
    # Forks are not forks of what they were made of, once that is deleted.
    await client.delete(f"{SESSIONS}/{session}")
    assert (await info(client, forked))["x-portico"]["forkedFrom"] == session
    # A fork with an idempotency key is made once.
    session, keyed = await create(portico.client), {"Idempotency-Key": "fork-1"}
    first = await fork(portico.client, session, keyed)
    assert await fork(portico.client, session, keyed) == first != await fork(portico.client, session)


async def test_a_fork_has_the_settings(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"remember": True}])
    body = {
        "agent": {"name": "script", "options": {"scenario": name, "pace": "fast", "token": "secret-token-1"}, "tools": GRANT},
        "tools": [{"name": "weather", "description": "The weather.", "parameters": {"type": "object"}}],
    }
    client = portico.client
    session = (await client.post(SESSIONS, json=body)).json()["sessionId"]
    await turn(client, session, user_message("remember me"))
    forked = await fork(client, session)
    before, after = await info(client, session), await info(client, forked)
    assert (before["agent"], before["tools"]) == (after["agent"], after["tools"])
    assert after["agent"]["options"]["token"] == "***"
    answer = await turn(client, forked, user_message("what?"))
    assert "remember me" in str(answer["messages"])


async def test_calls_without_a_result_are_cancelled_in_a_fork(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "I write."}, NOTE, {"text": "Written."}], [{"text": "Next."}])
    client = portico.client
    session = await create(client, "script", name, tools=GRANT)
    await turn(client, session, user_message("write"))
    forked = await fork(client, session)
    cancelled = {"role": "tool", "toolCallId": "n1", "content": "Tool call cancelled"}
    assert (await history(client, forked))[-1] == cancelled
    assert (await info(client, forked))["x-portico"]["state"] == "idle"
    assert (await info(client, session))["x-portico"]["state"] == "waiting"
    await turn(client, session, {"role": "tool_permission", "toolCallId": "n1", "granted": True})
    whole = await history(client, session)
    assert [one["role"] for one in whole] == ["user", "assistant", "tool", "assistant"]
    # Between the call and its result.
    assert await history(client, await fork(client, session, messages=2)) == [*whole[:2], cancelled]
    assert await history(client, await fork(client, session, messages=3)) == whole[:3]


async def test_a_session_at_work_is_forked_at_an_event_only(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "one"}], [{"text": "two"}, {"hang": {}}])
    client = portico.client
    session = await create(client, "script", name)
    await turn(client, session, user_message("a"))
    last = (await info(client, session))["x-portico"]["lastSeq"]
    body = {"messages": [user_message("b")], "stream": "delta"}
    async with client.stream("POST", f"{SESSIONS}/{session}/turns", json=body) as answer:
        assert answer.status_code == 200
        path = f"{SESSIONS}/{session}/fork"
        assert "in progress" in await expect_error(client.post(path, json={}), 409)
        forked = await fork(client, session, after=last)
        assert [one["content"] for one in await history(client, forked)] == ["a", "one"]
        await client.post(f"{SESSIONS}/{session}/cancel")


BAD_FORKS: list[Any] = [
    ({"after": 5}, "no event 5"),
    ({"after": -1}, "after"),
    ({"messages": 1}, "has 0 messages"),
    ({"messages": -1}, "messages"),
    ({"messages": 0, "after": 0}, "leave one of them out"),
    ({"after": 2**63}, "after"),
    ({"after": "x"}, "after"),
]


async def test_bad_forks_create_nothing(portico: RunningGateway) -> None:
    session = await create(portico.client)
    for body, text in BAD_FORKS:
        assert text in await expect_error(portico.client.post(f"{SESSIONS}/{session}/fork", json=body), 400), (body, text)
        assert await ids(portico.client) == [session], (body, text)


async def test_sessions_of_another_key_are_not_found(portico: RunningGateway) -> None:
    session = await create(portico.client)
    other = {"Authorization": f"Bearer {await add_key(portico.gateway, 'other')}"}
    for method, path, body in (
        ("GET", "/messages", None),
        ("POST", "/fork", {}),
        ("PATCH", "", {"title": "stolen"}),
    ):
        request = portico.client.request(method, f"{SESSIONS}/{session}{path}", json=body, headers=other)
        assert "no session" in await expect_error(request, 404)
    assert "title" not in (await info(portico.client, session))["x-portico"]


# -- the list -------------------------------------------------------------------------------------------------------------


async def test_the_list_by_activity(portico: RunningGateway) -> None:
    client = portico.client
    created = [await create(client) for _ in range(5)]
    assert await ids(client) == await ids(client, order="activity") == created[::-1]
    for n in (1, 3, 0):
        await turn(client, created[n], user_message())
    expected = [created[n] for n in (0, 3, 1, 4, 2)]
    for limit in (1, 2, 5, 100):
        assert await ids(client, order="activity", limit=limit) == expected
        assert await ids(client, limit=limit) == created[::-1]
    # Bad filters.
    for query in ({"order": "x"}, {"state": "x"}, {"cwd": "relative"}, {"cwd": "/a\0b"}, {"order": "activity", "after": "x"}):
        await expect_error(portico.client.get(SESSIONS, params=query), 400)


async def test_the_list_by_agent_state_and_folder(tmp_path: Path, write_scenario: WriteScenario) -> None:
    write_scenario([NOTE], name="waits.json")
    write_scenario([{"text": "a"}, {"hang": {}}], name="works.json")
    project = tmp_path / "project"
    (tmp_path / "link").symlink_to(project)
    (project / "below").mkdir(parents=True)
    config = gateway_config(tmp_path, server={"folders": "any"})
    async with run_gateway(config) as running:
        client = running.client
        waiting = await create(client, "script", "waits.json", tools=GRANT)
        await turn(client, waiting, user_message())
        working = await create(client, "script", "works.json")
        here = await create(client, "echo", options={"cwd": str(project)})
        below = await create(client, "echo", options={"cwd": str(project / "below")})
        body = {"messages": [user_message()], "stream": "delta"}
        async with client.stream("POST", f"{SESSIONS}/{working}/turns", json=body) as answer:
            assert answer.status_code == 200
            assert await ids(client, state="running") == [working]
            assert await ids(client, state="waiting") == [waiting]
            assert await ids(client, state="idle") == [below, here]
            assert await ids(client, agent="script") == [working, waiting]
            assert await ids(client, agent="script", state="waiting", order="activity") == [waiting]
            assert await ids(client, agent="none") == []
            assert await ids(client, cwd=str(project)) == await ids(client, cwd=str(tmp_path / "link")) == [here]
            assert await ids(client, cwd=str(project / "below"), limit=1) == [below]
            assert await ids(client, cwd=str(tmp_path / "scenes"), limit=1, order="activity") == [working, waiting]
            await client.post(f"{SESSIONS}/{working}/cancel")


async def test_a_long_list_by_activity(portico: RunningGateway) -> None:
    store, expected = portico.gateway.store, list[str]()
    for n in range(300):
        session = f"sess_{n:032}"
        await store.sessions.create(SessionRecord(session, "echo", created_at=float(n)), [])
        if n % 3 == 0:
            await store.runs.start(RunRecord(f"run_{n}", session, "ended", "end_turn", 1))
            expected.append(session)
    idle = [f"sess_{n:032}" for n in range(300) if n % 3]
    assert await ids(portico.client, order="activity", limit=7) == expected[::-1] + idle[::-1]
