"""Wrong API keys are limited for each client, in whatever way they come; a right key is never refused."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.errors import TooMany
from gateway.security.wrong_keys import MAX_CLIENTS, MAX_WRONG_KEYS, SECONDS, WrongKeys
from tests.support.cluster import leave_out, placement
from tests.support.daemon import KEY, NO_CERTIFICATES, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock

Answer = tuple[int, str | None]
"""The status of a response, and its `Retry-After`."""


@pytest.fixture(autouse=True)
def one_gateway() -> None:
    if placement():
        leave_out("counts the wrong keys of one gateway; each node counts its own")


async def by_bearer(url: str, key: str, **headers: str) -> Answer:
    return await _sent(url, "GET", "/sessions", Authorization=f"Bearer {key}", **headers)


async def by_vendor_header(url: str, key: str) -> Answer:
    return await _sent(url, "GET", "/v1/models", **{"x-api-key": key})


async def by_body(url: str, key: str) -> Answer:
    body = {"driver": "echo", "task": "hello", "auth_token": key}
    return await _sent(url, "POST", "/v1/execute", body, Authorization="Bearer wrong-key-of-the-header")


async def by_sign_in(url: str, key: str) -> Answer:
    return await _sent(url, "POST", "/v1/sign-ins", {"key": key})


async def by_public_route(url: str, key: str) -> Answer:
    return await _sent(url, "GET", "/meta", Authorization=f"Bearer {key}")


async def by_websocket(url: str, key: str) -> Answer:
    subprotocol: Any = f"bearer.{key}"
    try:
        async with connect(f"ws{url[4:]}/acp/echo", subprotocols=[subprotocol], proxy=None):
            return 101, None
    except InvalidStatus as refused:
        assert json.loads(refused.response.body)["error"]
        return refused.response.status_code, refused.response.headers.get("Retry-After")


WAYS: list[Callable[[str, str], Awaitable[Answer]]] = [
    by_bearer,
    by_vendor_header,
    by_body,
    by_sign_in,
    by_public_route,
    by_websocket,
]


async def _sent(url: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=NO_CERTIFICATES) as client:
        response = await client.request(method, path, json=body, headers=headers)
        return response.status_code, response.headers.get("Retry-After")


@pytest.mark.parametrize("send", WAYS)
async def test_wrong_keys_count_in_whatever_way_they_come_and_right_ones_are_never_refused(
    portico: RunningGateway, send: Callable[[str, str], Awaitable[Answer]]
) -> None:
    for n in range(MAX_WRONG_KEYS):
        assert (await send(portico.url, f"wrong-key-{n}"))[0] == 401
    for other in (send, by_bearer):
        status, wait = await other(portico.url, "wrong-key-again")
        assert status == 429 and wait is not None and 0 < int(wait) <= SECONDS
    for _ in range(2):
        assert (await send(portico.url, KEY))[0] in (101, 200, 201)
    assert (await portico.client.get("/sessions")).status_code == 200


async def test_unknown_paths_count_and_tell_nothing(portico: RunningGateway) -> None:
    for n in range(MAX_WRONG_KEYS):
        assert (await _sent(portico.url, "GET", "/nothing", Authorization=f"Bearer wrong-key-{n}"))[0] == 404
    assert (await _sent(portico.url, "GET", "/nothing", Authorization="Bearer wrong-key-again"))[0] == 404
    assert (await by_bearer(portico.url, "wrong-key-again"))[0] == 429


async def test_requests_without_a_key_and_ended_sign_ins_are_no_tries(portico: RunningGateway) -> None:
    for _ in range(MAX_WRONG_KEYS + 1):
        assert (await _sent(portico.url, "GET", "/sessions"))[0] == 401
        assert (await _sent(portico.url, "GET", "/sessions", **{"X-Portico-Sign-In": "x"}))[0] == 401
        assert (await _sent(portico.url, "POST", "/v1/sign-ins", {"code": "x"}))[0] == 401
    assert (await by_bearer(portico.url, "wrong-key"))[0] == 401


async def test_forwarded_addresses_do_not_count(portico: RunningGateway) -> None:
    """Any program of this machine could take another address with each try, or use up the tries of another one."""
    for n in range(MAX_WRONG_KEYS):
        assert (await by_bearer(portico.url, f"wrong-key-{n}", **{"X-Forwarded-For": f"10.0.0.{n}"}))[0] == 401
    assert (await by_bearer(portico.url, "wrong-key-again", **{"X-Forwarded-For": "10.0.0.99"}))[0] == 429


@pytest.mark.parametrize(("proxies", "believed"), [(["127.0.0.0/8"], True), (["10.0.0.0/8"], False)])
async def test_forwarded_addresses_count_from_trusted_proxies(tmp_path: Path, proxies: list[str], believed: bool) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"trusted_proxies": proxies})) as portico:
        for n in range(MAX_WRONG_KEYS):
            # What the client has written is in front of what the proxy has added.
            forwarded = {"X-Forwarded-For": f"192.0.2.{n}, 203.0.113.7"}
            assert (await by_bearer(portico.url, f"wrong-key-{n}", **forwarded))[0] == 401
        assert (await by_bearer(portico.url, "wrong-key", **{"X-Forwarded-For": "203.0.113.7"}))[0] == 429
        other = await by_bearer(portico.url, "wrong-key", **{"X-Forwarded-For": "203.0.113.8"})
        assert other[0] == (401 if believed else 429)


def test_keys_are_counted_by_client(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    keys, began = WrongKeys(clock), clock.now
    for n in range(MAX_WRONG_KEYS):
        keys.count(f"2001:db8::{n}")
    assert "2001:db8::/64 has sent 10 wrong API keys within a minute" in caplog.text
    for address in ("2001:db8::ffff", "2001:db8:0:0:1::"):
        with pytest.raises(TooMany, match="wait 60 seconds") as refused:
            keys.count(address)
        assert refused.value.headers == {"Retry-After": "60"}
    for address in ("2001:db8:0:1::1", "10.0.0.1", "::ffff:10.0.0.1", "testclient\x1b[8m", ""):
        keys.count(address)
    clock.now = began + SECONDS - 0.5
    with pytest.raises(TooMany, match="wait 1 seconds"):
        keys.count("2001:db8::1")
    clock.now = began + SECONDS
    for _ in range(MAX_WRONG_KEYS):
        keys.count("2001:db8::1")


def test_clients_have_a_limit() -> None:
    keys = WrongKeys()
    for n in range(2 * MAX_CLIENTS):
        keys.count(f"10.0.{n // 256}.{n % 256}")
    assert len(keys._by_client) == MAX_CLIENTS
