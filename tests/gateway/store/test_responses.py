"""Answers that clients name by ids of their own, and names of conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.store import ConversationRecord, ResponseRecord, SessionRecord, Store
from tests.support.stores import store_url

FIRST = ResponseRecord("resp_1", "s", 1, 10.0, {"model": "echo"}, conversation_id="conv_1")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    await found.sessions.create(SessionRecord("s", "echo"), [])
    yield found
    await found.close()


async def test_an_answer_is_stored_with_its_end(store: Store) -> None:
    await store.responses.add(FIRST)
    assert await store.responses.get("resp_1") == FIRST
    await store.responses.set_over({"resp_1": (7, 11.5), "resp_none": (8, 12.0)})
    assert await store.responses.get("resp_1") == replace(FIRST, last_seq=7, completed_at=11.5)
    assert await store.responses.get("resp_2") is None


async def test_the_newest_answer_of_a_conversation(store: Store) -> None:
    assert await store.responses.newest("conv_1") is None
    newest = replace(FIRST, id="resp_2", first_seq=3, created_at=20.0)
    for record in (newest, FIRST, replace(newest, id="resp_3", conversation_id="conv_2", created_at=30.0)):
        await store.responses.add(record)
    assert await store.responses.newest("conv_1") == newest
    await store.responses.delete("resp_2")
    assert await store.responses.newest("conv_1") == FIRST


async def test_answers_are_deleted_with_their_session(store: Store) -> None:
    await store.responses.add(FIRST)
    await store.sessions.delete("s")
    assert await store.responses.get("resp_1") is None
    await store.responses.add(FIRST)
    assert await store.responses.get("resp_1") is None, "nor is one stored whose session was deleted meanwhile"


async def test_names_of_conversations(store: Store) -> None:
    record = ConversationRecord("conv_1", "phone", 1.5, {"metadata": {"a": "b"}})
    await store.responses.add_conversation(record)
    assert await store.responses.get_conversation("conv_1") == record
    await store.responses.update_conversation(replace(record, body={"metadata": {}}))
    assert await store.responses.get_conversation("conv_1") == replace(record, body={"metadata": {}})
    await store.responses.delete_conversation("conv_1")
    assert await store.responses.get_conversation("conv_1") is None
