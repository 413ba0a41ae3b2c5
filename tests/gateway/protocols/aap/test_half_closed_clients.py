"""A client that closes its side of the connection behind its request (SHUT_WR) counts as disconnected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.support.daemon import KEY, RunningGateway
from tests.support.requests import get_history, session_body, wait_until_idle
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


async def test_the_turn_of_a_half_closed_client_goes_on_unless_it_is_to_be_cancelled(
    portico: RunningGateway, tmp_path: Path, write_scenario: WriteScenario
) -> None:
    for cancel in (False, True):
        rest = [{"hang": True}] if cancel else [{"wait_for_file": "go"}, {"text": ", done"}]
        steps = [{"text": "begun"}, {"write_file": {"path": "began", "text": "x"}}, *rest]
        options: dict[str, Any] = {"on_disconnect": "cancel"} if cancel else {}
        body = session_body("script", "go", options={"scenario": write_scenario(steps)}, **options)
        data = json.dumps(body).encode()
        address = httpx.URL(portico.url)
        _, writer = await asyncio.open_connection(address.host, address.port)
        head = f"PUT /session HTTP/1.1\r\nHost: {address.host}\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)

        await wait_until((tmp_path / "scenes" / "began").exists)
        writer.write_eof()
        session = (await portico.client.get("/sessions")).json()["sessions"][0]
        (tmp_path / "scenes" / "go").touch()
        assert (await wait_until_idle(portico.client, session))["state"] == "idle", cancel
        assert (await get_history(portico.client, session))[-1]["content"] == ("begun" if cancel else "begun, done"), cancel
        writer.close()
        (tmp_path / "scenes" / "began").unlink()
