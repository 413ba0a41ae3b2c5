"""A long session is deleted in parts behind its deletion: it is gone at once, and turns of others come in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.store.sessions import SessionRepository
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session, expect_error, send_turn, user_message
from tests.support.stores import sql
from tests.support.waiting import wait_until


async def create_long(portico: RunningGateway) -> str:
    body = {"agent": {"name": "echo"}, "messages": [user_message(f"message {n}") for n in range(1000)]}
    session: str = (await portico.client.post("/aap/v3/sessions", json=body)).json()["sessionId"]
    return session


def left(tmp_path: Path, session: str) -> int:
    [(found,)] = sql(tmp_path / "data", "SELECT count(*) FROM messages WHERE session_id = :session", {"session": session})
    return int(found)


async def test_turns_come_between_the_parts(portico: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long, other = await create_long(portico), (await create_session(portico.client, "echo"))["sessionId"]
    delete_part, parts = SessionRepository.delete_part, list[bool]()

    async def with_turn(self: SessionRepository, session: str) -> bool:
        more = await delete_part(self, session)
        await send_turn(portico.client, other, "goes on")
        parts.append(more)
        return more

    monkeypatch.setattr(SessionRepository, "delete_part", with_turn)
    assert (await portico.client.delete(f"/aap/v3/sessions/{long}")).status_code == 204
    await expect_error(portico.client.get(f"/aap/v3/sessions/{long}"), 404)
    await expect_error(portico.client.get(f"/aap/v3/sessions/{long}/messages"), 404)
    await wait_until(lambda: not all(parts))
    assert len(parts) > 5 and left(tmp_path, long) == 0 and left(tmp_path, other) == 2 * len(parts) + 2


async def test_a_deletion_that_a_shutdown_interrupts_goes_on_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_part = SessionRepository.delete_part
    async with run_gateway(gateway_config(tmp_path)) as portico:
        long = await create_long(portico)

        async def and_shutdown(self: SessionRepository, session: str) -> bool:
            portico.gateway.sessions._closing = True
            return await delete_part(self, session)

        monkeypatch.setattr(SessionRepository, "delete_part", and_shutdown)
        assert (await portico.client.delete(f"/aap/v3/sessions/{long}")).status_code == 204
        await wait_until(lambda: left(tmp_path, long) < 1000)
    assert left(tmp_path, long) > 0
    monkeypatch.undo()
    async with run_gateway(gateway_config(tmp_path)):
        await wait_until(lambda: left(tmp_path, long) == 0)
