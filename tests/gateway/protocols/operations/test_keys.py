"""`/v1/keys`: only administrators list, add and remove keys, and a key is shown once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.config import parse
from gateway.security.redaction import Redactor
from tests.support.daemon import RunningGateway, gateway_config, http_client, serve_gateway
from tests.support.requests import create_session, expect_error


async def listed(portico: RunningGateway) -> list[dict[str, Any]]:
    answer = await portico.client.get("/v1/keys")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["keys"])


async def test_key_is_added_used_listed_and_removed(portico: RunningGateway) -> None:
    answer = await portico.client.post("/v1/keys", json={"name": "phone"})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert sorted(answer.json()) == ["key", "name"]
    key = answer.json()["key"]
    (found,) = await listed(portico)
    assert (found["name"], found["lastUsedAt"]) == ("phone", None) and found["createdAt"].endswith("Z")
    async with http_client(portico.url) as phone:
        phone.headers["authorization"] = f"Bearer {key}"
        await create_session(phone, "echo")
        (found,) = await listed(portico)
        assert found["lastUsedAt"] is not None
        assert key not in (await portico.client.get("/v1/keys")).text
        assert (await portico.client.delete("/v1/keys/phone")).status_code == 204
        await expect_error(phone.get("/aap/v3/sessions"), 401)
    assert await listed(portico) == []
    await expect_error(portico.client.delete("/v1/keys/phone"), 404)


async def test_wrong_name_is_refused(portico: RunningGateway) -> None:
    for body, status in (
        ({"name": "../x"}, 400),
        ({"name": ""}, 400),
        ({"name": "x" * 65}, 400),
        ({"name": 5}, 400),
        ({}, 400),
        ({"name": "a", "key": "mine"}, 400),
        ({"name": "PHONE"}, 409),
    ):
        await portico.client.post("/v1/keys", json={"name": "phone"})
        await expect_error(portico.client.post("/v1/keys", json=body), status)
        assert [key["name"] for key in await listed(portico)] == ["phone"], (body, status)


async def test_named_key_may_not_manage_keys(portico: RunningGateway) -> None:
    key = (await portico.client.post("/v1/keys", json={"name": "phone"})).json()["key"]
    async with http_client(portico.url) as phone:
        phone.headers["authorization"] = f"Bearer {key}"
        requests = (phone.get("/v1/keys"), phone.post("/v1/keys", json={"name": "more"}), phone.delete("/v1/keys/phone"))
        for request in requests:
            assert "use a default key" in await expect_error(request, 403)
    assert [found["name"] for found in await listed(portico)] == ["phone"]


async def test_keys_are_not_changed_where_authentication_is_off(tmp_path: Path) -> None:
    async with serve_gateway(Gateway(parse(gateway_config(tmp_path)), (), Redactor())) as running:
        await running.gateway.credentials.add_key("phone")
        assert [key["name"] for key in await listed(running)] == ["phone"]
        for request in (running.client.post("/v1/keys", json={"name": "more"}), running.client.delete("/v1/keys/phone")):
            assert "portico key" in await expect_error(request, 403)
        assert [key["name"] for key in await listed(running)] == ["phone"]
