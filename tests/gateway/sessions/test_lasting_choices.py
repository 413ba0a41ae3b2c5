"""Whose choices may change the files of a CLI, which apply to the sessions of all clients."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from drivers.contract.agent_specs import SessionSpec
from drivers.echo.driver import EchoDriver
from tests.support.daemon import RunningGateway
from tests.support.named_keys import add_key
from tests.support.requests import user_message


@pytest.mark.parametrize("named", [False, True])
async def test_choices_of_a_named_key_do_not_last(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    specs: list[SessionSpec] = []
    opened = EchoDriver.open

    async def record(self: EchoDriver, spec: SessionSpec, *arguments: Any, **options: Any) -> Any:
        specs.append(spec)
        return await opened(self, spec, *arguments, **options)

    monkeypatch.setattr(EchoDriver, "open", record)
    headers = dict(portico.client.headers)
    if named:
        headers["authorization"] = f"Bearer {await add_key(portico.gateway, 'phone')}"
    async with httpx.AsyncClient(base_url=portico.url, headers=headers, timeout=60) as client:
        answer = await client.put("/session", json={"agent": {"name": "echo"}, "messages": [user_message("hello")]})
    assert answer.status_code == 201 and [spec.permissions.lasting_choices for spec in specs] == [not named]
