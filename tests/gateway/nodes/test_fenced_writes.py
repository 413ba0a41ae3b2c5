"""What a node that was stopped, and has lost a session meanwhile, does not write when it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.protocols.model_apis.stored_responses import NoResponse, StoredResponses
from gateway.security.authentication import ADMINISTRATOR
from gateway.store import ResponseRecord
from tests.gateway.nodes.three_nodes import ClusterNode, run_nodes, say
from tests.gateway.store.expiry import silence

TAKEOVER = (0.0, 2.0, 2.0)
"""Looks of which the last one takes over what the first one has seen."""


async def take_over(stopped: ClusterNode, other: ClusterNode) -> None:
    await silence(other.gateway.store, stopped.id)
    assert await other.look(*TAKEOVER) == 1


async def test_the_responses_of_a_session_are_written_by_the_node_that_has_it(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await say(session)
        responses, stored = StoredResponses(a.gateway), b.gateway.store.responses
        before, late = (ResponseRecord(name, session.id, 1, 10.0, {"fields": {}}, None) for name in ("resp_1", "resp_2"))
        await responses.add(before, session)
        await take_over(a, b)
        responses.set_over(before, session, 999, 12.0)
        await responses.add(late, session)
        await responses.close()
        assert await stored.get("resp_1") == before and await stored.get("resp_2") is None
        at_b, of_b = await b.get(session.id), StoredResponses(b.gateway)
        of_b.set_over(before, at_b, at_b.log.last, 12.0)
        await of_b.close()
        over = await stored.get("resp_1")
        assert over is not None and over.last_seq == at_b.log.last


async def test_a_response_that_another_node_has_deleted_is_not_found(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await say(session)
        responses = StoredResponses(a.gateway)
        await responses.add(ResponseRecord("resp_1", session.id, 1, 10.0, {"fields": {}}, None), session)
        assert (await responses.get(ADMINISTRATOR, "resp_1")).session is session
        # The session was there meanwhile.
        await b.gateway.store.responses.delete("resp_1")
        with pytest.raises(NoResponse):
            await responses.get(ADMINISTRATOR, "resp_1")


async def test_the_slot_of_a_turn_at_another_node_stays(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await take_over(a, b)
        at_b = await b.get(session.id)
        slots = b.gateway.store.shared.turn_slots
        assert await slots.take(at_b.id, None, b.id, 1) is None
        await slots.take(at_b.id, None, a.id, 1)
        await slots.release(at_b.id, a.id)
        assert await slots.count(None) == 1
