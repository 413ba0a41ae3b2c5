"""The search in titles and messages over AAP v3, by the indexes of SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.store import search_index
from tests.gateway.protocols.aap.test_session_changes import rename
from tests.gateway.protocols.aap.test_session_updates import SESSIONS, create, turn
from tests.support.daemon import RunningGateway, gateway_config, http_client, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import expect_error, user_message

pytestmark = pytest.mark.usefixtures("each_store")


async def found(client: httpx.AsyncClient, q: str, **query: Any) -> list[dict[str, Any]]:
    """Return the results of all pages."""
    results: list[dict[str, Any]] = []
    while True:
        answer = await client.get("/aap/v3/search", params={"q": q, **query})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        results += body["results"]
        if "next" not in body:
            return results
        query["after"] = body["next"]


async def texts(client: httpx.AsyncClient, q: str, **query: Any) -> list[str]:
    """Return the excerpts, with brackets around what matches."""
    return [
        "".join(f"[{part['text']}]" if part["match"] else part["text"] for part in result["snippet"])
        for result in await found(client, q, **query)
    ]


async def say(client: httpx.AsyncClient, *messages: str, agent: str = "echo") -> str:
    session = await create(client, agent)
    for message in messages:
        await turn(client, session, user_message(message))
    return session


async def test_messages_and_titles_are_found(portico: RunningGateway) -> None:
    client = portico.client
    first = await say(client, "The quick brown fox", "jumps over the lazy dog")
    second = await say(client, "A fox again")
    await rename(client, first, "Animals of the forest")
    results = await found(client, "fox")
    assert [(one["sessionId"], one["role"], one["position"]) for one in results] == [
        (second, "assistant", 1), (second, "user", 0), (first, "assistant", 1), (first, "user", 0),
    ]  # fmt: skip
    assert {one["agent"] for one in results} == {"echo"}
    assert [one["title"] for one in results[1:3]] == ["A fox again", "Animals of the forest"]
    assert results[3]["snippet"] == [{"text": "The quick brown ", "match": False}, {"text": "fox", "match": True}]
    messages = (await client.get(f"{SESSIONS}/{first}/messages")).json()["messages"]
    assert [one["seq"] for one in results[2:]] == [messages[1]["seq"], messages[0]["seq"]]
    [title] = await found(client, "forest")
    assert (title["role"], title["position"], title["seq"]) == ("title", None, None)
    assert title["snippet"][-1] == {"text": "forest", "match": True}
    await rename(client, first, "Something else")
    assert await found(client, "forest") == []
    await client.delete(f"{SESSIONS}/{first}")
    assert {one["sessionId"] for one in await found(client, "fox")} == {second}


async def test_words_phrases_and_pages(portico: RunningGateway) -> None:
    # Words and phrases.
    client = portico.client
    await say(client, 'Quarterly "revenue" report\\2026, a list of foo-bar')
    for query, count in (
        ("quarter", 2), ("REVENUE", 2), ("report quarterly", 2), ("report missing", 0), ('"list of foo"', 2), ('"foo list"', 0),
        ("foo-bar", 2), ('"revenue"', 2), ("report\\2026", 2), ("!!!", 0), ('"', 0), ("*", 0),
    ):  # fmt: skip
        assert len(await found(client, query)) == count, query
    # Paging.
    client = portico.client
    for n in range(4):
        await say(client, f"needle {n}", f"needle {n} again")
    everything = await found(client, "needle", limit=100)
    assert len(everything) == 16
    for limit in (1, 3, 7, 16):
        assert await found(client, "needle", limit=limit) == everything
    # Sessions of one agent.
    await say(portico.client, "hello there")
    assert await found(portico.client, "hello", agent="script") == []
    assert len(await found(portico.client, "hello", agent="echo")) == 2
    # An excerpt of a long message.
    await say(portico.client, "word " * 3000 + "thimble" + " word" * 3000)
    for text in await texts(portico.client, "thimble"):
        assert "[thimble]" in text and text.startswith("…") and text.endswith("…") and len(text) < 400


async def test_only_the_callers_sessions_are_searched(portico: RunningGateway) -> None:
    async with http_client(portico.url) as one, http_client(portico.url) as other:
        one.headers["Authorization"] = f"Bearer {await add_key(portico.gateway, 'one')}"
        other.headers["Authorization"] = f"Bearer {await add_key(portico.gateway, 'other')}"
        own = await say(one, "secret plans")
        await say(portico.client, "plans of the administrator")
        assert {result["sessionId"] for result in await found(one, "plans")} == {own}
        assert await found(other, "plans") == []
        assert len(await found(portico.client, "plans")) == 4


ANY_INPUT = (
    'a"b', '""', "'; DROP TABLE messages; --", "NEAR(a b)", "a AND", "OR", "body:x", "^x", "(", "a*b", "{x}", "-x", "+", "\\",
    "%", "_", "x" * 1000, "é" * 500, "a " * 500, "\t\n", "\x02\x03\x1f", "日本", "🙂", "\u200b",
)  # fmt: skip


async def test_any_input_is_safe(portico: RunningGateway) -> None:
    await say(portico.client, "a b c")
    for query in ANY_INPUT:
        answer = await portico.client.get("/aap/v3/search", params={"q": query})
        assert answer.status_code == (400 if not query.strip() else 200), (query, answer.text)
    # Bad requests.
    for query, text in BAD_REQUESTS:
        assert text in await expect_error(portico.client.get("/aap/v3/search", params=query), 400), query


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({}, "q"), ({"q": ""}, "q"), ({"q": "x" * 1001}, "q"), ({"q": "x", "limit": 0}, "limit"),
    ({"q": "x", "limit": 101}, "limit"), ({"q": "x", "after": "x"}, "after"), ({"q": "x", "after": "bnVsbA=="}, "after"),
    ({"q": "x", "after": "WzEsIDIsIDNd"}, "after"), ({"q": "x", "after": "dHJ1ZQ=="}, "after"),
]  # fmt: skip


async def test_accents_and_words_without_spaces(portico: RunningGateway) -> None:
    client = portico.client
    await say(client, "Un café à Zürich", "東京タワーへ行きました")
    assert (await texts(client, "cafe zurich"))[0] == "Un [café] à [Zürich]"
    assert (await texts(client, "タワー"))[0] == "東京[タワー]へ行きました"
    assert (await texts(client, "行き"))[0] == "東京タワーへ[行き]ました"
    assert await texts(client, "京東") == []
    # Titles are searched as messages are.
    session = await say(portico.client, "hello")
    await rename(portico.client, session, "東京都庁 \0 the \x02end\x03")
    assert await texts(portico.client, "京都") == ["東[京都]庁 \0 the \x02end\x03"]
    assert await texts(portico.client, "end") == ["東京都庁 \0 the \x02[end]\x03"]


@pytest.mark.sqlite_only
async def test_without_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "_MODULE", "no_such_module")
    # Not a copy of a store whose index is kept.
    (tmp_path / "data").mkdir(mode=0o700)
    async with run_gateway(gateway_config(tmp_path)) as portico:
        session = await say(portico.client, "hello")
        assert "FTS5" in await expect_error(portico.client.get("/aap/v3/search", params={"q": "hello"}), 501)
        await turn(portico.client, session, user_message("goes on"))


async def test_a_session_that_is_deleted_while_it_is_searched(portico: RunningGateway) -> None:
    client = portico.client
    for n in range(10):
        session = await say(client, f"short life {n}")
        await asyncio.gather(client.delete(f"{SESSIONS}/{session}"), found(client, "life"))
    assert await found(client, "life") == []
    kept = await say(client, "long life")
    assert {one["sessionId"] for one in await found(client, "life")} == {kept}


async def test_a_fork_and_seeds_are_found(portico: RunningGateway) -> None:
    client = portico.client
    body = {"agent": {"name": "echo"}, "messages": [user_message(f"message number-{n}") for n in range(1000)]}
    session = (await client.post(SESSIONS, json=body)).json()["sessionId"]
    assert [one["position"] for one in await found(client, '"number 999"')] == [999]
    assert len(await found(client, "message", limit=100)) == 1000
    fork = (await client.post(f"{SESSIONS}/{session}/fork", json={})).json()["sessionId"]
    assert [(one["sessionId"], one["position"]) for one in await found(client, '"number 7"')] == [(fork, 7), (session, 7)]
    await client.delete(f"{SESSIONS}/{session}")
    assert [(one["sessionId"], one["position"]) for one in await found(client, '"number 7"')] == [(fork, 7)]
