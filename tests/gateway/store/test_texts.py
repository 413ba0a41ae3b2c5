"""Texts that databases treat differently: they are stored as they are, and ordered by their bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store import AuditFilter, AuditRecord, SessionRecord, Store
from gateway.store.postgresql_texts import escaped, unescaped
from tests.support.stores import store_url

TEXTS = ("NUL \0 in it", "\0", "\ufdd0", "\ufdd00 and \ufdd01", "", " ", "%s %(x)s %%", "back\\slash 'quote' \"", "🙂\U0010ffff")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    yield found
    await found.close()


@pytest.mark.parametrize("text", TEXTS)
async def test_a_text_is_stored_as_it_is(store: Store, text: str) -> None:
    await store.sessions.create(SessionRecord("s", "echo", {"option": text}, native_id=text), [])
    await store.session_metadata.update("s", title=text, chosen_title=text)
    await store.compactions.set("s", 0, text)
    decision = AuditRecord(1.0, "s", "r", "echo", text, text, "denied", text, text, text)
    await store.audit.append([decision])
    session = await store.sessions.get("s")
    assert session is not None and (session.native_id, session.config) == (text, {"option": text})
    known = await store.session_metadata.get("s")
    assert (known.title, known.chosen_title) == (text, text)
    assert await store.compactions.get("s") == (0, text)
    assert await store.audit.newest(1) == [decision]
    if text:
        assert [record for _, record in await store.audit.search(AuditFilter(text=text), 5)] == [decision]


async def test_a_text_may_be_longer_than_its_column(store: Store) -> None:
    decision = AuditRecord(1.0, "s" * 100, "r" * 100, "a" * 100, "t" * 1000, "c" * 1000, "o" * 100, "b" * 1000, None, "{}")
    await store.audit.append([decision])
    assert await store.audit.newest(1) == [decision]


async def test_ids_are_ordered_by_their_bytes(store: Store) -> None:
    ids = ["B", "Z", "_", "a", "b", "a b", "a-b", "a_b", "ab", "Ä", "ä", "é", "z", "ß", "東", "🙂"]
    for name in ids:
        await store.sessions.create(SessionRecord(name, "echo", created_at=1.0), [])
    ordered = sorted(ids, key=str.encode, reverse=True)
    assert [record.id for record in await store.sessions.page(100)] == ordered
    behind = await store.sessions.page(3, (1.0, ordered[4]))
    assert [record.id for record in behind] == ordered[5:8]


async def test_times_are_stored_exactly(store: Store) -> None:
    times = [0.1, 1e-9, 1795433442.4348211, 2**53 + 1.0]
    for n, at in enumerate(times):
        await store.sessions.create(SessionRecord(f"s{n}", "echo", created_at=at), [])
    assert {record.created_at for record in await store.sessions.page(10)} == set(times)


@pytest.mark.one_store
@given(st.text(alphabet=st.sampled_from("a01\0\ufdd0")))
def test_escaping_is_reversible(text: str) -> None:
    assert unescaped(escaped(text)) == text and "\0" not in escaped(text)
