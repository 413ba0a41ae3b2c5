"""Changes of the mode by the CLI itself, while the mode before is being stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from drivers.contract.driver_info import MODE_OPTION
from gateway.security.authentication import ADMINISTRATOR
from tests.support.daemon import RunningGateway
from tests.support.requests import create_session

WriteScenario = Callable[..., str]


async def test_the_last_of_two_modes_is_kept_and_stored(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await create_session(portico.client, "script", "Go", options={"scenario": write_scenario([{"text": "one"}])})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, found["sessionId"])
    sessions, update = portico.gateway.store.sessions, portico.gateway.store.sessions.update
    storing, go_on, stored = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow(session_id: str, **values: Any) -> None:
        storing.set()
        await go_on.wait()
        await update(session_id, **values)
        stored.append(values["config"]["options"][MODE_OPTION])

    monkeypatch.setattr(sessions, "update", slow)
    session._mode_changed("plan")
    await storing.wait()
    session._mode_changed("workspace")
    go_on.set()
    assert session._storing_mode is not None
    await session._storing_mode
    assert session.config.options[MODE_OPTION] == "workspace"
    assert stored == ["plan", "workspace"]
