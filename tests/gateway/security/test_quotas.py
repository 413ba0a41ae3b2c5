"""The quotas of a key: connections, event streams and stored sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from gateway.config import LimitSettings
from gateway.errors import TooMany
from gateway.security.quotas import KeyQuotas, Quota
from tests.gateway.protocols.acp.raw_connections import initialized, socket_to
from tests.support.daemon import RunningGateway, gateway_config, http_client, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import create_session, execute, expect_error, get_session, session_body
from tests.support.waiting import wait_until


@asynccontextmanager
async def limited(folder: Path, **limits: int) -> AsyncIterator[tuple[RunningGateway, httpx.AsyncClient]]:
    """A gateway with these limits, and a client with a key of its own."""
    async with run_gateway(gateway_config(folder, limits=limits)) as portico, http_client(portico.url) as phone:
        phone.headers["Authorization"] = f"Bearer {await add_key(portico.gateway, 'phone')}"
        yield portico, phone


@asynccontextmanager
async def following(client: httpx.AsyncClient, session: str) -> AsyncIterator[None]:
    """An open event stream."""
    async with client.stream("GET", f"/session/{session}/events") as answer:
        assert answer.status_code == 200
        yield


async def eventually_accepted(client: httpx.AsyncClient, path: str) -> None:
    """A connection is released when the gateway has noticed its end."""

    async def accepted() -> bool:
        return (await client.get(path)).status_code == 200

    await wait_until(accepted)


async def test_connections_of_a_key_are_limited(tmp_path: Path) -> None:
    async with limited(tmp_path, connections_per_key=2) as (portico, phone):
        session = (await create_session(phone, "echo"))["sessionId"]
        async with following(phone, session), following(phone, session):
            refused = await phone.get("/sessions")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
            assert "limits.connections_per_key" in refused.json()["error"]
            assert (await portico.client.get("/sessions")).status_code == 200
            assert (await phone.get("/healthz")).status_code == 200
        await eventually_accepted(phone, "/sessions")


async def test_websockets_and_acp_connections_over_http_count_as_connections(tmp_path: Path) -> None:
    async with limited(tmp_path, connections_per_key=3) as (portico, phone):
        url, client = f"{portico.url}/acp/echo", portico.client
        header = await initialized(client, url)
        async with socket_to(portico), socket_to(portico):
            await expect_error(client.get("/sessions"), 429)
            with pytest.raises(InvalidStatus) as refused:
                async with socket_to(portico):
                    pass
            assert refused.value.response.status_code == 429
            assert (await phone.get("/sessions")).status_code == 200
        await eventually_accepted(client, "/sessions")
        assert (await client.delete(url, headers=header)).status_code == 202
        async with socket_to(portico), socket_to(portico):
            assert (await client.get("/sessions")).status_code == 200


async def test_failed_and_refused_requests_release_their_connection(tmp_path: Path) -> None:
    async with limited(tmp_path, connections_per_key=1, streams_per_key=1) as (portico, _):
        for _ in range(3):
            await expect_error(portico.client.get("/session/none/events"), 404)
            await expect_error(portico.client.post("/v1/execute", json={"driver": "none", "task": "x"}), 400)
            await expect_error(portico.client.put("/session", content=b"{", headers={"Content-Type": "application/json"}), 400)
            await execute(portico.client, "x", "echo")


async def test_event_streams_of_a_key_are_limited(tmp_path: Path) -> None:
    async with limited(tmp_path, streams_per_key=1) as (portico, phone):
        session = (await create_session(phone, "echo"))["sessionId"]
        async with following(phone, session):
            turn = {"messages": [{"role": "user", "content": "x"}]}
            for answer in (
                await phone.post(f"/session/{session}", json={**turn, "stream": "delta"}),
                await phone.put("/session", json=session_body("echo", stream="delta")),
                await phone.get(f"/session/{session}/events"),
            ):
                assert (answer.status_code, "limits.streams_per_key" in answer.text) == (429, True)
            await expect_error(phone.post("/v1/execute", json={"driver": "echo", "task": "x"}), 429)
            # Nothing has begun.
            assert len(await portico.gateway.store.sessions.page(10)) == 1
            assert (await get_session(phone, session))["state"] == "idle"
            assert (await execute(portico.client, "x", "echo"))[0]["text"] == "x"
            # What is no stream is not counted.
            assert (await phone.post(f"/session/{session}", json={**turn, "stream": "none"})).status_code == 200


async def test_sessions_of_a_key_are_limited(tmp_path: Path) -> None:
    async def refused(client: httpx.AsyncClient, path: str = "/session", **body: Any) -> None:
        method = "POST" if path.endswith("s") else "PUT"
        text = await expect_error(client.request(method, path, json=body or session_body("echo")), 429)
        assert "limits.sessions_per_key" in text

    async with limited(tmp_path, sessions_per_key=2) as (portico, phone):
        first, _ = [(await create_session(phone, "echo"))["sessionId"] for _ in range(2)]
        await refused(phone)
        await refused(phone, "/aap/v3/sessions", agent={"name": "echo"})
        for _ in range(2):
            await create_session(portico.client, "echo")
        await refused(portico.client)
        assert (await phone.delete(f"/session/{first}")).status_code == 204
        # A creation that fails is not counted.
        await expect_error(phone.put("/session", json=session_body("script", options={"scenario": "none.json"})), 503)
        both = await asyncio.gather(*(phone.put("/session", json=session_body("echo")) for _ in range(2)))
        assert sorted(answer.status_code for answer in both) == [201, 429]
        key = phone.headers["Authorization"]
    async with run_gateway(gateway_config(tmp_path, limits={"sessions_per_key": 2})) as portico:
        portico.client.headers["Authorization"] = key
        await refused(portico.client)


def test_no_limit_and_defaults() -> None:
    unlimited = Quota(0, "connections", "x")
    assert len([unlimited.take("a") for _ in range(1000)]) == 1000
    quotas = KeyQuotas(LimitSettings())
    releases = [quotas.streams.take(None) for _ in range(256)]
    with pytest.raises(TooMany, match="streams_per_key"):
        quotas.streams.take(None)
    quotas.streams.take("a")
    releases[0]()
    # A second release has no effect.
    releases[0]()
    quotas.streams.take(None)
    with pytest.raises(TooMany):
        quotas.streams.take(None)
