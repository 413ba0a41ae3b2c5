"""Host, Origin and key checks of both transports, and the end of connections whose key is removed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.protocols.acp.transport import http, websocket_frames
from tests.gateway.protocols.acp.raw_connections import BEARER, INITIALIZE, STREAM, asked, initialized, rpc, socket_to
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.named_keys import add_key, remove_key

UI = "http://ui.example:3000"


async def test_host_origin_and_key_are_checked_on_both_transports(portico: RunningGateway) -> None:
    for headers, status, expected in (
        ({"Host": "evil.example"}, 403, "not 'evil.example'"),
        ({"Origin": "http://evil.example"}, 403, "origin"),
        ({"Authorization": "Bearer wrong-key"}, 401, "key"),
        ({"Authorization": ""}, 401, "key"),
    ):
        async with httpx.AsyncClient(headers={**BEARER, **headers}, timeout=60) as client:
            url = f"{portico.url}/acp/echo"
            for answer in (
                await client.post(url, json=INITIALIZE),
                await client.get(url, headers=STREAM),
                await client.delete(url),
            ):
                assert (answer.status_code, expected in answer.json()["error"]) == (status, True), (headers, status)
        port = int(portico.url.rpartition(":")[2])
        handshake_headers = {**BEARER, **headers}
        # The host of the URL becomes the Host header; the connection goes to `host`.
        ws_url = f"ws://{handshake_headers.pop('Host', '127.0.0.1')}:{port}/acp/echo"
        with pytest.raises(InvalidStatus) as refused:
            await connect(ws_url, host="127.0.0.1", port=port, additional_headers=handshake_headers, proxy=None)
        assert refused.value.response.status_code == status, (headers, status)
        assert expected in json.loads(refused.value.response.body)["error"], (headers, status)


async def test_page_of_an_allowed_origin_may_use_both_transports(tmp_path: Path) -> None:
    async with (
        run_gateway(gateway_config(tmp_path, server={"origins": [UI]})) as portico,
        httpx.AsyncClient(timeout=60) as client,
    ):
        url = f"{portico.url}/acp/echo"
        requested = "authorization,content-type,acp-connection-id,acp-session-id"
        for method in ("POST", "GET", "DELETE"):
            preflight = {"Origin": UI, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": requested}
            allowed = await client.options(url, headers=preflight)
            assert allowed.status_code == 200, allowed.text
            assert set(requested.split(",")) <= set(allowed.headers["access-control-allow-headers"].lower().split(", ")) or (
                allowed.headers["access-control-allow-headers"] == requested
            )
        answer = await client.post(url, json=INITIALIZE, headers={**BEARER, "Origin": UI})
        assert answer.headers["access-control-allow-origin"] == UI
        assert "acp-connection-id" in answer.headers["access-control-expose-headers"].lower().split(", ")
        subprotocol: Any = f"bearer.{KEY}"
        ws_url = f"ws{portico.url[4:]}/acp/echo"
        async with connect(ws_url, origin=UI, subprotocols=[subprotocol], proxy=None) as socket:  # type: ignore[arg-type]
            assert socket.subprotocol == subprotocol
            assert (await asked(socket, INITIALIZE))["result"]["protocolVersion"] == 1


@pytest.fixture
async def named(portico: RunningGateway) -> str:
    """A key with the name `laptop`."""
    return await add_key(portico.gateway, "laptop")


async def test_idle_websocket_is_closed_after_its_key_is_removed(portico: RunningGateway, named: str, clock: ManualClock) -> None:
    async with socket_to(portico, key=named) as socket:
        assert "result" in await asked(socket, rpc("session/list", {}))
        await remove_key(portico.gateway, "laptop")
        await clock.expire(websocket_frames.KEY_CHECK_INTERVAL)
        await asyncio.wait_for(socket.wait_closed(), 60)
        assert socket.close_code == 1008


async def test_http_stream_ends_after_its_key_is_removed(portico: RunningGateway, named: str, clock: ManualClock) -> None:
    url = f"{portico.url}/acp/echo"
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {named}"}, timeout=20) as client:
        connection_header = await initialized(client, url)
        async with client.stream("GET", url, headers={**connection_header, **STREAM}) as stream:
            assert stream.status_code == 200
            await remove_key(portico.gateway, "laptop")
            await clock.expire(http.CHECK_INTERVAL)
            # The gateway ends the idle stream.
            assert [line async for line in stream.aiter_lines() if line.startswith("data")] == []
        assert (await client.post(url, json=rpc("session/list", {}), headers=connection_header)).status_code == 401
