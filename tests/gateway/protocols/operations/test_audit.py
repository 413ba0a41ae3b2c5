"""`GET /v1/audit`: filters, search and pages, and that a named key gets the decisions about its own sessions only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.daemon import RunningGateway, http_client
from tests.support.named_keys import add_key
from tests.support.requests import create_session, expect_error, send_turn

WriteScenario = Callable[..., str]


async def noted(client: httpx.AsyncClient, scenario: str, granted: bool = True) -> str:
    """A session in which a note was written, or denied."""
    grants = [{"name": "write_note"}, {"name": "lookup", "trust": True}]
    session = str((await create_session(client, options={"scenario": scenario}, grants=grants))["sessionId"])
    reply = {"role": "tool_permission", "toolCallId": "note", "granted": granted, "reason": "100%_sure"}
    await send_turn(client, session, reply)
    return session


@pytest.fixture
def scenario(write_scenario: WriteScenario) -> str:
    lookup = {"tool_call": {"id": "look", "name": "lookup", "input": {"query": "Weather"}}}
    note = {"tool_call": {"id": "note", "name": "write_note", "input": {"path": "notes/a.txt", "text": "x"}}}
    return write_scenario([lookup, note, {"text": "end"}])


async def found(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await client.get("/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["entries"])


async def test_decisions_newest_first_with_all_fields(portico: RunningGateway, scenario: str) -> None:
    session = await noted(portico.client, scenario, granted=False)
    entries = await found(portico.client)
    assert [(one["outcome"], one["by"], one["tool"], one["callId"]) for one in entries] == [
        ("refused", "client", "write_note", "note"),
        ("asked", "default", "write_note", "note"),
        ("trusted", "trust", "lookup", "look"),
    ]
    first = entries[0]
    assert (first["sessionId"], first["agent"], first["reason"]) == (session, "script", "100%_sure")
    assert first["arguments"] == '{"path": "notes/a.txt", "text": "x"}' and first["at"].endswith("Z")
    assert entries[0]["id"] > entries[1]["id"]


async def test_filters_search_and_pages(portico: RunningGateway, scenario: str) -> None:
    for granted in (True, False):
        await noted(portico.client, scenario, granted)
    for query, number in (
        ({"tool": "lookup"}, 2),
        ({"tool": "look"}, 0),
        ({"outcome": "granted"}, 1),
        ({"agent": "script"}, 6),
        ({"agent": "echo"}, 0),
        ({"q": "WEATHER"}, 2),
        ({"q": "100%_"}, 2),
        ({"q": "100_%"}, 0),
        ({"q": "%"}, 2),
        ({"q": "' OR 1=1 --"}, 0),
        ({"q": "note", "outcome": "asked"}, 2),
    ):
        assert len(await found(portico.client, **query)) == number, (query, number)
    # Pages.
    session = await noted(portico.client, scenario)
    await noted(portico.client, scenario)
    pages, query = [], {"session": session, "limit": "2"}
    while True:
        page = (await portico.client.get("/v1/audit", params=query)).json()
        pages.append([entry["outcome"] for entry in page["entries"]])
        if page["next"] is None:
            break
        query["before"] = page["next"]
    assert pages == [["granted", "asked"], ["trusted"]]
    # Invalid query is refused.
    for query in ("limit=0", "limit=1001", "before=x", "before=-1", f"before={2**63}", f"q={'x' * 201}"):
        await expect_error(portico.client.get(f"/v1/audit?{query}"), 400)


async def test_named_key_gets_decisions_about_its_own_sessions(portico: RunningGateway, scenario: str) -> None:
    await noted(portico.client, scenario)
    async with http_client(portico.url) as phone:
        phone.headers["authorization"] = f"Bearer {await add_key(portico.gateway, 'phone')}"
        assert await found(phone) == []
        own = await noted(phone, scenario)
        assert {entry["sessionId"] for entry in await found(phone)} == {own}
        assert "client phone" in {entry["by"] for entry in await found(phone)}
    assert len(await found(portico.client)) == 6
