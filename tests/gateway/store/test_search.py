"""The search by the words that are stored with messages and titles: SQLite and PostgreSQL find the same."""

# ruff: noqa: RUF001
from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from drivers.contract.messages import MESSAGE, UserMessage
from gateway.errors import NotSupported
from gateway.events.messages import message_row
from gateway.security.authentication import ADMINISTRATOR, Caller
from gateway.sessions.search import Found, SessionSearch
from gateway.store import EventRow, MessageRow, RunRecord, SessionRecord, Store, search_index
from gateway.store.sqlite import sqlite_url
from gateway.store.words import LONGEST_WORD, MOST_CHARACTERS, words_in, words_of
from tests.support import stores
from tests.support.postgresql import server
from tests.support.stores import store_url

CALLERS = (ADMINISTRATOR, Caller("ann", False), Caller("bob", False), Caller(None, False))
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


Stored = tuple[str | None, str, str | None, Sequence[tuple[str, str]]]
"""The owner, the agent, the title and the messages of a session."""


async def store_sessions(store: Store, sessions: Sequence[Stored]) -> None:
    for n, (owner, agent, title, messages) in enumerate(sessions):
        rows = [message_row(MESSAGE.validate_python({"role": role, "content": text})) for role, text in messages]
        await store.sessions.create(SessionRecord(f"s{n}", agent, {}, None, None, n, owner), rows)
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


def expected(sessions: Sequence[Stored], caller: Caller, query: str, agent: str | None) -> list[tuple[str, str, int | None]]:
    """Return what is to be found, by a comparison of all texts."""
    phrases, rest = [], query
    while '"' in rest:
        before, _, rest = rest.partition('"')
        phrase, _, rest = rest.partition('"')
        phrases += [(words_of(word), False) for word in before.split()] + [(words_of(phrase), True)]
    phrases += [(words_of(word), False) for word in rest.split()]
    wanted = [f" {words} " if whole else f" {words}" for words, whole in phrases if words]

    def matches(text: str | None) -> bool:
        return bool(text and wanted) and all(one in f" {words_of(text or '')} " for one in wanted)

    found = list[tuple[str, str, int | None]]()
    for n, (owner, of_agent, title, messages) in reversed(list(enumerate(sessions))):
        if (caller.all_sessions or caller.name == owner) and agent in (None, of_agent):
            places = [(role, at) for at, (role, text) in enumerate(messages) if matches(text)]
            found += [(f"s{n}", role, at) for role, at in reversed(places)]
            found += [(f"s{n}", "title", None)] if matches(title) else []
    return found


@pytest.mark.slow
@pytest.mark.one_store
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
async def test_both_databases_find_what_is_there(tmp_path: Path, every: int) -> None:
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
    for query in queries[::every]:
        if not query.replace('"', "").strip():
            continue
        given = chosen.choice(CALLERS), query, chosen.choice((None, None, "echo")), chosen.choice((2, 20, 100))
        found = await pages(SessionSearch(first), *given)
        assert await pages(SessionSearch(second), *given) == found, given
        assert [(one.session_id, one.role, one.position) for one in found] == expected(sessions, *given[:3]), given
        some += len(found) > 1
        for one in found:
            assert any(matches for _, matches in one.excerpt), given
    assert some > 50 / every
    for store in (first, second):
        await store.close()


def test_words() -> None:
    assert words_of("Über-naïve, ÉTUDE e\u0301tude_3.14 don't") == "uber naive etude etude 3 14 don t"
    assert words_of("東京タワーへ行きました。カ・ナ 한국어") == "東 京 タ ワ ー へ 行 き ま し た カ ナ 한국어"
    assert words_of("МОЙ Ёлка ΟΔΟΣ 𐐀 \u0301 \0 \x1f!") == "мой ёлка οδοσ 𐐨"
    assert words_of("x" * 1000) == "x" * LONGEST_WORD
    assert words_of("x " * MOST_CHARACTERS) == " ".join("x" * (MOST_CHARACTERS // 2))
    for text in (*WORDS, *COMBINING, " ".join(WORDS)):
        assert " ".join(word.folded for word in words_in(text)) == words_of(text)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    yield found
    await found.close()


async def found_by(store: Store, query: str) -> list[tuple[str, int | None]]:
    return [(one.session_id, one.position) for one in await pages(SessionSearch(store), ADMINISTRATOR, query, None, 100)]


def user(text: str, seq: int | None = None) -> MessageRow:
    return message_row(UserMessage(content=text), seq)


@pytest.mark.one_store
@pytest.mark.parametrize("store_kind", ["postgresql"], indirect=True)
async def test_every_message_is_stored_and_found_however_many_words_it_has(store: Store) -> None:
    """An index entry of PostgreSQL has a limit, beyond which the message would be refused."""
    await store.sessions.create(SessionRecord("s", "echo"), [])
    distinct = " ".join(f"{n:x}" for n in range(300_000))
    longest = " ".join(chr(0x10400 + n // 1600) + chr(0x10400 + n % 1600 // 40) + chr(0x10400 + n % 40) for n in range(64_000))
    one_word = "𐐀" * 1_000_000
    ideographs = "".join(chr(0x20000 + n) for n in range(60_000))
    for text in (distinct, longest, one_word, ideographs):
        await store.messages.append("s", [user(text)])
    assert [row.body for row in await store.messages.rows("s")] == [
        UserMessage(content=text).model_dump_json() for text in (distinct, longest, one_word, ideographs)
    ]
    last = words_of(distinct).split()[-2]
    assert await found_by(store, f'"{last}"') == await found_by(store, '"1 2 3 4"') == [("s", 0)]
    assert await found_by(store, f'"{longest[:3]}"') == [("s", 1)]
    assert await found_by(store, one_word[:300]) == [("s", 2)]
    assert await found_by(store, ideographs[59_000:59_003]) == [("s", 3)]


async def test_only_texts_of_users_and_assistants_are_searched(store: Store) -> None:
    messages = [
        {"role": "system", "content": "needle"},
        {"role": "user", "content": "needle"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "haystack"}, {"type": "text", "text": "needle"},
            {"type": "tool_use", "toolCallId": "1", "name": "haystack", "input": {"a": "haystack"}},
        ]},
        {"role": "tool", "toolCallId": "1", "content": "needle"},
    ]  # fmt: skip
    await store.sessions.create(SessionRecord("s", "echo"), [message_row(MESSAGE.validate_python(one)) for one in messages])
    assert await found_by(store, "needle") == [("s", 2), ("s", 1)]
    assert await found_by(store, "haystack") == []


async def test_words_are_stored_with_seeds_runs_events_and_copies(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "echo"), [user("needle of a seed")])
    await store.runs.start(RunRecord("r", "s", "running", None, 1), [user("needle of a run", 1)])
    await store.events.append(EventRow("s", 2, 2, b"{}"), [user("needle of an event", 2)])
    await store.runs.stop("r", "waiting", None, EventRow("s", 3, 3, b"{}"), messages=[user("needle of a stop", 3)])
    await store.runs.resume("r", "s", [user("needle of an answer", 4)])
    await store.sessions.create(SessionRecord("fork", "echo"), [user("needle of a fork")], copied=("s", 2))
    assert await found_by(store, "needle") == [("fork", 2), ("fork", 1), ("fork", 0), *(("s", at) for at in (4, 3, 2, 1, 0))]
    assert await found_by(store, '"needle of a run"') == [("fork", 1), ("s", 1)]


async def test_the_displayed_title_is_searched(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "echo"), [])
    await store.session_metadata.update("s", commands="[]")
    await store.session_metadata.update("s", title="of the agent")
    assert await found_by(store, '"the agent"') == [("s", None)]
    await store.session_metadata.update("s", chosen_title="of the User")
    assert (await found_by(store, "agent"), await found_by(store, '"the user"')) == ([], [("s", None)])
    await store.session_metadata.update("s", title="of the agent again")
    assert await found_by(store, "agent") == []
    await store.session_metadata.update("s", chosen_title=None)
    assert (await found_by(store, "again"), await found_by(store, "user")) == ([("s", None)], [])


async def test_the_index_is_created_once_by_daemons_that_start_together(tmp_path: Path) -> None:
    url = store_url(tmp_path, empty=True)
    opened = await asyncio.gather(*(Store.open(url) for _ in range(4)))
    await opened[0].sessions.create(SessionRecord("s", "echo"), [user("needle")])
    assert [await found_by(store, "needle") for store in opened] == [[("s", 0)]] * 4
    for store in opened:
        await store.close()


def check_index(data_dir: Path) -> None:
    """Fail if the index of SQLite has other words than the messages."""
    table = search_index.TABLE
    stores.sql(data_dir, f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 1)")


def set_module(data_dir: Path, before: str, after: str) -> None:
    """Let the table of the index be one of another module, as for an SQLite that has only that."""
    with closing(sqlite3.connect(data_dir / "portico.db")) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        changed = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?"
        connection.execute(changed, (f"USING {before}", f"USING {after}", search_index.TABLE))


@pytest.mark.sqlite_only
async def test_a_store_is_used_without_fts5_and_with_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(store_url(tmp_path))
    for name in ("kept", "deleted"):
        await store.sessions.create(SessionRecord(name, "echo"), [user("needle one"), user("")])
    await store.close()
    set_module(tmp_path, "fts5", "no_such_module")
    with monkeypatch.context() as without:
        without.setattr(search_index, "_MODULE", "no_such_module")
        # The second start changes nothing.
        for n in range(2):
            store = await Store.open(store_url(tmp_path))
            await store.messages.append("kept", [user(f"needle {n}")])
            with pytest.raises(NotSupported, match="FTS5"):
                await found_by(store, "needle")
            if n:
                await store.sessions.delete("deleted")
                while await store.sessions.delete_part("deleted"):
                    pass
            await store.close()
    set_module(tmp_path, "no_such_module", "fts5")
    store = await Store.open(store_url(tmp_path))
    assert await found_by(store, "needle") == [("kept", 3), ("kept", 2), ("kept", 0)]
    await store.messages.append("kept", [user("needle last")])
    assert await found_by(store, "last") == [("kept", 4)]
    check_index(tmp_path)
    await store.close()


@pytest.mark.sqlite_only
async def test_a_store_is_created_without_fts5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(search_index, "_MODULE", "no_such_module")
        store = await Store.open(store_url(tmp_path))
        await store.sessions.create(SessionRecord("s", "echo"), [user("needle")])
        with pytest.raises(NotSupported, match="FTS5"):
            await found_by(store, "needle")
        await store.close()
    store = await Store.open(store_url(tmp_path))
    assert await found_by(store, "needle") == [("s", 0)]
    await store.close()


@pytest.mark.sqlite_only
async def test_the_index_follows_every_change_of_messages(store: Store, tmp_path: Path) -> None:
    await store.sessions.create(SessionRecord("s", "echo"), [user("needle one"), user("needle two"), user("")])
    stores.sql(tmp_path, "UPDATE messages SET words = 'thread' WHERE position = 0")
    stores.sql(tmp_path, "UPDATE messages SET words = 'thread' WHERE position = 2")
    stores.sql(tmp_path, "DELETE FROM messages WHERE position = 1")
    with closing(sqlite3.connect(tmp_path / "portico.db")) as connection:
        connection.execute("VACUUM")
    assert (await found_by(store, "needle"), await found_by(store, "thread")) == ([], [("s", 2), ("s", 0)])
    check_index(tmp_path)
