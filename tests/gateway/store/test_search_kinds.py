"""The indexes of SQLite and PostgreSQL find the same in the same texts, and several nodes may fill that of PostgreSQL."""

# ruff: noqa: RUF001
from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.security.authentication import ADMINISTRATOR, Caller
from gateway.sessions import search
from gateway.sessions.changes import SessionChanges
from gateway.sessions.search import Found, SessionSearch
from gateway.store import SessionRecord, Store
from gateway.store.database import Database
from gateway.store.sqlite import sqlite_url
from gateway.store.urls import backend_of
from tests.manual_clock import ManualClock
from tests.postgresql import server
from tests.waiting import wait_until

pytestmark = pytest.mark.one_store

CALLERS = (ADMINISTRATOR, Caller("ann", False), Caller("bob", False), Caller(None, False))
# Without characters of private use and those that are newer than Unicode 6.1, which SQLite or Python does not take for letters.
SPACED = """
hello Hello HELLO hel help naïve naive Über über uber ÜBER straße STRASSE foo_bar foo-bar foo bar don't don’t a.b.c C++ c
3.14 3 14 ½ x² x x2 東京 東京都 京都 東 カタカナ が か ガ 한국어 하 한 😀 👩\u200d👩\u200d👧 МОЙ мой мои Ёлка елка ёлка
ΟΔΟΣ οδος οδοσ οδός İstanbul istanbul ısparta ISPARTA µm μm ſtop stop STOP ǅ ǆ dž ﬁn fin étude etude हिन्दी हि ไทย שָׁלוֹם שלום
عَرَبِي عربي \u2126 Ω \u212a k \u212b Å å a Ⅳ ⅳ 𝐀 𐐀 𐐨 ẞ ß ss ŉ ᾳ ᾼ ﷺ ₂ Ａ ａ Ｂ１ １ ٣ ① 1 Đ đ ø Ø o ł ậ
AND OR NOT NEAR NEAR(a * ' \\ % & | ! <-> :* ( ) body: ^ { ? ~ "
"""
LONG = ("aa" * 120, "aa" * 120 + "b", "z" * 199, "z" * 200, "z" * 201, "Ü" * 150, "Ü" * 201)
COMBINING = ("e\u0301tude", "\u0301x", "и\u0306", "A\u030a\u0327", "i\u0307", "q\u0323\u0307", "か\u3099")
CONTROLS = ("zero\u200bwidth", "soft\u00adhyphen", "nul\0l", "a\ufffdb", "line\nend", "tab\tend", "\x1f", "\x02")
WORDS = (*SPACED.split(), *LONG, *COMBINING, *CONTROLS)


@asynccontextmanager
async def searched(store: Store) -> AsyncIterator[SessionSearch]:
    """A search whose index is filled."""
    clock = ManualClock()
    found = SessionSearch(store, SessionChanges(), clock)
    found.start()
    try:
        await clock.expire(search.START_DELAY)
        await wait_until(lambda: found._complete)
        yield found
    finally:
        await found.close()


async def store_sessions(store: Store, sessions: Sequence[tuple[str | None, str, str | None, Sequence[tuple[str, str]]]]) -> None:
    for n, (owner, agent, title, messages) in enumerate(sessions):
        bodies = [json.dumps({"role": role, "content": text}) for role, text in messages]
        await store.sessions.create(SessionRecord(f"s{n}", agent, {}, None, None, n, owner), bodies, None)
        if title:
            await store.session_metadata.update(f"s{n}", title=title)


async def pages(by: SessionSearch, caller: Caller, query: str, agent: str | None, limit: int) -> list[Found]:
    found: list[Found] = []
    after = None
    while True:
        page = await by.search(caller, query, agent=agent, limit=limit, after=after)
        assert len(page.found) <= limit
        found += page.found
        after = page.next
        if after is None:
            return found


@pytest.mark.slow
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
async def test_both_kinds_find_the_same(tmp_path: Path, every: int) -> None:
    """By all of the queries, or by every fifth."""
    chosen = random.Random(3)

    def text(count: int) -> str:
        return chosen.choice((" ", " ", "", "-", "_", ", ", "\n")).join(chosen.choice(WORDS) for _ in range(count))

    sessions = [
        (
            chosen.choice((None, "ann", "bob")),
            chosen.choice(("echo", "script")),
            chosen.choice((None, text(3))),
            [(chosen.choice(("user", "assistant")), text(chosen.choice((1, 2, 3, 8, 40)))) for _ in range(chosen.randrange(12))],
        )
        for _ in range(30)
    ]
    parts = [text for *_, messages in sessions for _, text in messages]
    queries = [*WORDS, *(" ".join(chosen.choice(WORDS)[: chosen.choice((1, 2, 300))] for _ in range(3)) for _ in range(40))]
    for _ in range(80):
        whole, length = chosen.choice(parts), chosen.choice((1, 2, 5, 20, 60))
        begin = chosen.randrange(len(whole))
        queries.append(whole[begin : begin + length])
    queries += [f'"{query.replace(chr(34), "")}"' for query in queries[::2]]
    urls = sqlite_url(tmp_path), server().url(server().create_empty_database())
    first, second = [await Store.open(url) for url in urls]
    for store in (first, second):
        await store_sessions(store, sessions)
    some = 0
    async with searched(first) as by_sqlite, searched(second) as by_postgresql:
        for query in queries[::every]:
            if not query.replace('"', "").strip():
                continue
            given = chosen.choice(CALLERS), query, chosen.choice((None, None, "echo")), chosen.choice((2, 20, 100))
            expected, found = await pages(by_sqlite, *given), await pages(by_postgresql, *given)
            places = [[(one.session_id, one.role, one.position) for one in each] for each in (expected, found)]
            assert places[0] == places[1], given
            some += len(found) > 1
            for one, other in zip(expected, found, strict=True):
                # Excerpts of longer texts may begin at another word.
                complete = all(
                    not part.startswith("…") and not part.endswith("…") for each in (one, other) for part, _ in each.excerpt
                )
                if complete and query.isalnum() and search._divided(query) == query:
                    assert one.excerpt == other.excerpt, given
                assert any(matches for _, matches in other.excerpt) or len(query) > 20, given
                assert not any("\x1f" in part for part, _ in other.excerpt), given
    assert some > 50 / every
    for store in (first, second):
        await store.close()


INDEXED = "SELECT count(*), count(DISTINCT row_id >> 32) FROM search_texts"


async def opened(url: str, count: int) -> list[Store]:
    return [await Store.open_as_node(url) for _ in range(count)]


async def test_nodes_add_the_same_messages_at_the_same_time() -> None:
    database = server().create_database()
    stores = await opened(server().url(database), 3)
    await store_sessions(stores[0], [(None, "echo", "title", [("user", "word")] * 60) for _ in range(4)])
    for store in stores:
        assert await store.search.prepare() == "index"

    async def add(store: Store, seed: int) -> None:
        chosen = random.Random(seed)
        for session in chosen.sample(["s0", "s1", "s2", "s3"], 4):
            at = 0
            while at < 60:
                end = min(60, at + chosen.randrange(1, 9))
                await store.search.add(session, [(n, f"word {n}") for n in range(at, end)], end, "title", "title")
                at = end

    await asyncio.gather(*(add(store, seed) for seed, store in enumerate(stores)))
    assert server().execute(INDEXED, database) == [(4 * 61, 4)]
    assert server().execute("SELECT DISTINCT next_position, title FROM search_sessions", database) == [(60, "title")]
    assert await stores[0].search.not_indexed(10) == []
    for store in stores:
        await store.close()


async def test_a_session_is_deleted_while_another_node_adds_its_messages() -> None:
    database = server().create_database()
    first, second = stores = await opened(server().url(database), 2)
    await store_sessions(first, [(None, "echo", None, [("user", "word")] * 60) for _ in range(6)])
    for store in stores:
        await store.search.prepare()

    async def add(session: str) -> None:
        for at in range(60):
            await first.search.add(session, [(at, f"word {at}")], at + 1, None, None)

    async def remove(session: str, after: int) -> None:
        # None where the other node has added all of them.
        while (found := await second.search.not_indexed(1, [session])) and found[0].next_position < after:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await second.sessions.delete(session)
        await second.search.remove(session)

    work = [one for n in range(6) for one in (add(f"s{n}"), remove(f"s{n}", n * 9))]
    await asyncio.gather(*work)
    assert await second.search.deleted() == []
    # Nothing stays that no later start would find.
    assert server().execute(INDEXED, database) == [(0, 0)]
    for store in stores:
        await store.close()


async def test_one_node_fills_the_index_and_another_goes_on_when_it_is_killed(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = server().create_database()
    url = server().url(database)
    stores = await opened(url, 2)
    await store_sessions(stores[0], [(None, "echo", "title", [("user", f"word {n}") for n in range(30)]) for _ in range(10)])
    # In a process of its own, which adds some and is killed.
    program = f"""
import asyncio
from gateway.store import Store
async def main():
    store = await Store.open_as_node({url!r})
    await store.search.prepare()
    async with store.search.filling() as alone:
        await store.search.add("s0", [(n, "word") for n in range(7)], 7, "title", "title")
        print(alone, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"True\n"
    added = list[str]()
    for store in stores:
        add = store.search.add

        async def recorded(session_id: str, *rest: Any, add: Any = add) -> None:
            added.append(session_id)
            await add(session_id, *rest)

        monkeypatch.setattr(store.search, "add", recorded)
    searches = [SessionSearch(store, SessionChanges(), clock) for store in stores]
    for one in searches:
        one.start()
    await clock.expire(search.START_DELAY, by=2)
    await clock.waited_for(search.OTHER_NODE, by=2)
    for store in stores:
        async with store.search.filling() as alone:
            assert not alone
    assert not added and not any(one._complete for one in searches)
    process.kill()
    await process.wait()
    await clock.expire_until(wait_until(lambda: all(one._complete for one in searches)), search.OTHER_NODE)
    assert sorted(added) == sorted(f"s{n}" for n in range(10))
    assert server().execute(INDEXED, database) == [(10 * 31, 10)]
    for one, store in zip(searches, stores, strict=True):
        await one.close()
        await store.close()


async def test_a_lock_ends_whose_caller_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    database = server().create_database()
    backend = backend_of(server().url(database))
    store = Store(Database(backend))
    lock, locked, may_return = backend.try_lock, threading.Event(), threading.Event()

    def slow(key: int) -> Callable[[], None] | None:
        release = lock(key)
        locked.set()
        may_return.wait(30)
        return release

    monkeypatch.setattr(backend, "try_lock", slow)
    caller = asyncio.create_task(store.search.filling().__aenter__())
    await asyncio.to_thread(locked.wait, 30)
    caller.cancel()
    await asyncio.wait([caller])
    may_return.set()
    await store.close()
    used = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid()"
    await wait_until(lambda: not server().execute(used, database))
