"""Sessions whose store fails for a time: their agents, the next turns, and what is stored once it works again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.sessions import live_agent
from tests.daemon import RunningGateway, gateway_config
from tests.faulty_store import StoreFaults, run_faulty_gateway
from tests.gateway.cli.test_acp import small_agent
from tests.gateway.requests import create_session, send_turn, wait_until

WriteScenario = Callable[..., str]
FaultyGateway = tuple[RunningGateway, StoreFaults]


@pytest.fixture
async def faulty(tmp_path: Path) -> AsyncIterator[FaultyGateway]:
    async with run_faulty_gateway(gateway_config(tmp_path, agents={"small": small_agent(tmp_path)})) as found:
        yield found


async def test_native_id_that_cannot_be_stored_at_first_is_stored_later(
    faulty: FaultyGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    portico, faults = faulty
    monkeypatch.setattr(live_agent, "RETRY", 0.01)
    monkeypatch.setattr(live_agent, "STORE_TIMEOUT", 0.01)
    faults.fail("sessions.update")
    session = (await create_session(portico.client, "small", "say hello"))["sessionId"]
    assert (await send_turn(portico.client, session, "recall"))["messages"][0]["content"] == "say hello | recall"
    record = await portico.gateway.store.sessions.get(session)
    assert record is not None and record.native_id is None
    faults.clear()

    async def stored() -> bool:
        found = await portico.gateway.store.sessions.get(session)
        return found is not None and found.native_id is not None

    await wait_until(stored)
