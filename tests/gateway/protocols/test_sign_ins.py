"""Sign-ins of the console: codes, cookies with tokens, what a foreign page can do with them, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.app import Gateway
from gateway.config import parse
from gateway.security.redaction import Redactor
from gateway.security.sign_ins import digest_of
from tests.support.cluster import leave_out, placement
from tests.support.daemon import KEY, NO_CERTIFICATES, Daemon, RunningGateway, gateway_config, run_gateway, serve_gateway
from tests.support.named_keys import add_key, compare_keys, remove_key
from tests.support.requests import expect_error, session_body
from tests.support.waiting import wait_until

CURRENT = "/v1/sign-ins/current"


@dataclass
class SignedIn:
    """A client with the cookie of a sign-in, whose token is `token`."""

    client: httpx.AsyncClient
    token: str
    body: dict[str, Any]

    async def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Send a request as the console's page does."""
        headers = {"X-Portico-Sign-In": self.token, **given.pop("headers", {})}
        return await self.client.request(method, path, headers=headers, **given)


@asynccontextmanager
async def anybody(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key, which keeps cookies."""
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=NO_CERTIFICATES) as client:
        yield client


@asynccontextmanager
async def signed_in(url: str, **body: str) -> AsyncIterator[SignedIn]:
    async with anybody(url) as client:
        answer = await client.post("/v1/sign-ins", json=body or {"key": KEY}, headers={"Origin": url})
        assert answer.status_code == 201, answer.text
        found = dict(answer.json())
        yield SignedIn(client, found.pop("token"), found)


def data_dir(gateway: RunningGateway) -> Path:
    return gateway.gateway.settings.data_dir


async def make_code(client: httpx.AsyncClient) -> str:
    answer = await client.post("/v1/sign-in-codes")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["code"])


async def test_a_code_signs_in_once(portico: RunningGateway) -> None:
    made = (await portico.client.post("/v1/sign-in-codes")).json()
    assert made == {"code": made["code"], "expiresIn": 60, "url": f"{portico.url}/console/#code={made['code']}"}
    async with signed_in(portico.url, code=made["code"]) as browser:
        assert browser.body["administrator"] is True and browser.body["name"] is None and browser.body["open"] is False
        assert (await browser.request("GET", CURRENT)).json() == browser.body
        assert (await browser.request("GET", "/sessions")).status_code == 200
        text = await expect_error(browser.client.post("/v1/sign-ins", json={"code": made["code"]}), 401)
        assert "portico open" in text and made["code"] not in text


async def test_a_sign_in_is_its_cookie_and_its_token(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.security.wrong_keys.MAX_WRONG_KEYS", 1000)
    async with signed_in(portico.url) as browser, signed_in(portico.url) as other, anybody(portico.url) as nobody:
        [cookie] = browser.client.cookies.jar
        assert cookie.name == f"portico_sign_in_{urlsplit(portico.url).port}" and cookie.path == "/" and not cookie.secure
        assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "strict"
        for client, headers in (
            (browser.client, {}),
            (nobody, {"X-Portico-Sign-In": browser.token}),
            (browser.client, {"X-Portico-Sign-In": other.token}),
            (browser.client, {"X-Portico-Sign-In": str(cookie.value)}),
            (browser.client, {"X-Portico-Sign-In": ""}),
            (nobody, {"X-Portico-Sign-In": browser.token, "Cookie": f"portico_sign_in_1={cookie.value}"}),
            (nobody, {"Authorization": f"Bearer {browser.token}"}),
            (nobody, {"Authorization": f"Bearer {cookie.value}"}),
            (browser.client, {"X-Portico-Sign-In": browser.token, "Authorization": "Bearer wrong-key"}),
        ):
            for method, path, body in (
                ("GET", "/sessions", None),
                ("GET", CURRENT, None),
                ("PUT", "/session", session_body("echo")),
                ("POST", "/v1/execute", {"driver": "echo", "task": "x"}),
            ):
                refused = await client.request(method, path, headers=headers, json=body)
                assert refused.status_code == 401, (method, path, headers)
        assert (await portico.client.get("/sessions")).json() == {"sessions": []}


async def test_cookies_that_another_port_has_set_keep_nobody_signed_out(portico: RunningGateway) -> None:
    """Ports of a host share their cookies, and a browser sends one with a longer path first."""
    async with signed_in(portico.url) as browser, anybody(portico.url) as page:
        [cookie] = browser.client.cookies.jar
        own, other = f"{cookie.name}={cookie.value}", f"{cookie.name}=other"
        for cookies in (f"{other}; {own}", f"{own}; {other}", f"{other}; {cookie.name}=; {own}; x=y"):
            headers = {"X-Portico-Sign-In": browser.token, "Cookie": cookies}
            assert (await page.get(CURRENT, headers=headers)).json() == browser.body
        assert (await page.delete(CURRENT, headers=headers)).status_code == 204

        async def signed_out() -> bool:
            return (await browser.request("GET", CURRENT)).status_code == 401

        # Another node of a cluster knows it a moment later.
        if placement():
            await wait_until(signed_out)
        assert await signed_out()


async def test_tasks_and_turns_know_sign_ins(portico: RunningGateway) -> None:
    async with signed_in(portico.url) as browser:
        ran = await browser.request("POST", "/v1/execute", json={"driver": "echo", "task": "hello"})
        assert ran.status_code == 200 and "hello" in ran.text
        created = await browser.request("POST", "/aap/v3/sessions", json={"agent": {"name": "echo"}})
        path = f"/aap/v3/sessions/{created.json()['sessionId']}/turns"
        answered = await browser.request("POST", path, json={"messages": [{"role": "user", "content": "hello"}]})
        assert answered.status_code == 200, answered.text


PAGES: list[Any] = [
    ({"Origin": "OWN"}, 200),
    ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
    ({"Origin": "http://127.0.0.1:1"}, 403),
    ({"Origin": "http://localhost:3000"}, 401),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}, 401),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 401),
    ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
    ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 401),
]


async def test_only_the_own_page_can_use_or_make_a_sign_in(tmp_path: Path) -> None:
    # A page at localhost:3000 may use the gateway, with a key of its own.
    async with (
        run_gateway(gateway_config(tmp_path, server={"origins": ["http://localhost:3000"]})) as portico,
        signed_in(portico.url) as browser,
    ):
        for given, status in PAGES:
            headers = {name: value.replace("OWN", portico.url) for name, value in given.items()}
            assert (await browser.request("GET", "/sessions", headers=headers)).status_code == status, given
            async with anybody(portico.url) as page:
                made = await page.post("/v1/sign-ins", json={"key": KEY}, headers=headers)
                assert made.status_code == (201 if status == 200 else 403), given
                assert ("set-cookie" in made.headers) == (status == 200), given


async def test_the_cookie_is_for_https_where_the_page_is(tmp_path: Path) -> None:
    async with (
        run_gateway(gateway_config(tmp_path, server={"hosts": ["portico.example.org"]})) as portico,
        anybody(portico.url) as proxy,
    ):
        page = {"Host": "portico.example.org", "Origin": "https://portico.example.org"}
        made = await proxy.post("/v1/sign-ins", json={"key": KEY}, headers=page)
        assert made.status_code == 201 and "Secure" in made.headers["set-cookie"]
        assert made.headers["set-cookie"].startswith("portico_sign_in_default=")


async def test_websockets_know_no_sign_in(portico: RunningGateway) -> None:
    async with signed_in(portico.url) as browser:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        refused = await browser.request("GET", "/acp/echo", headers=upgrade)
        assert refused.status_code == 401


async def test_a_named_key_signs_in_as_itself_until_it_is_removed(portico: RunningGateway) -> None:
    key = await add_key(portico.gateway, "phone")
    created = await portico.client.post("/aap/v3/sessions", json={"agent": {"name": "echo"}})
    async with signed_in(portico.url, key=key) as browser, signed_in(portico.url) as administrator:
        assert browser.body["name"] == "phone" and browser.body["administrator"] is False
        assert (await browser.request("GET", "/sessions")).json() == {"sessions": []}
        assert (await browser.request("GET", f"/aap/v3/sessions/{created.json()['sessionId']}")).status_code == 404
        await remove_key(portico.gateway, "phone")
        assert (await browser.request("GET", "/sessions")).status_code == 401
        # Another key of the same name is not that one.
        await add_key(portico.gateway, "phone")
        assert (await browser.request("GET", "/sessions")).status_code == 401
        assert (await administrator.request("GET", "/sessions")).status_code == 200


async def test_a_code_is_for_the_key_that_asked_for_it(portico: RunningGateway) -> None:
    key = await add_key(portico.gateway, "phone")
    answer = await portico.client.post("/v1/sign-in-codes", headers={"Authorization": f"Bearer {key}"})
    async with signed_in(portico.url, code=answer.json()["code"]) as browser:
        assert browser.body["name"] == "phone"
        # Also for another device of who is signed in.
        further = (await browser.request("POST", "/v1/sign-in-codes")).json()["code"]
        async with signed_in(portico.url, code=further) as phone:
            assert phone.body["name"] == "phone"
    async with signed_in(portico.url) as browser:
        code = (await browser.request("POST", "/v1/sign-in-codes")).json()["code"]
        async with signed_in(portico.url, code=code) as phone:
            assert phone.body["administrator"] is True


async def test_sign_out_ends_the_sign_in_and_its_streams(
    portico: RunningGateway, write_scenario: Callable[..., str], tmp_path: Path
) -> None:
    scene = write_scenario([{"text": "one"}, {"wait_for_file": "go"}, {"text": "two"}, {"hang": True}])
    agent = {"name": "script", "options": {"scenario": scene}}
    async with signed_in(portico.url) as browser, signed_in(portico.url) as other:
        session = (await browser.request("POST", "/aap/v3/sessions", json={"agent": agent})).json()["sessionId"]
        turn = {"messages": [{"role": "user", "content": "x"}], "stream": "delta"}
        headers = {"X-Portico-Sign-In": browser.token}
        async with browser.client.stream("POST", f"/aap/v3/sessions/{session}/turns", json=turn, headers=headers) as stream:
            lines = stream.aiter_lines()
            while "one" not in await anext(lines):
                pass
            out = await browser.request("DELETE", CURRENT)
            assert out.status_code == 204 and "Max-Age=0" in out.headers["set-cookie"] and not browser.client.cookies
            await compare_keys(portico.gateway)
            (tmp_path / "scenes" / "go").touch()
            async with asyncio.timeout(30):
                rest = [line async for line in lines]
        assert not any("two" in line for line in rest)
        assert (await browser.request("GET", "/sessions")).status_code == 401
        assert (await other.request("GET", "/sessions")).status_code == 200
    assert (await portico.client.delete(CURRENT)).status_code == 404


async def test_sign_ins_survive_a_restart_and_only_hashes_are_stored(tmp_path: Path, daemon: Daemon) -> None:
    await daemon.start()
    async with signed_in(daemon.url) as browser, daemon.client() as client:
        [cookie] = browser.client.cookies.jar
        code = await make_code(client)
        await daemon.kill()
        hashed = digest_of(KEY)
        for found in (tmp_path / "data").rglob("*"):
            if found.is_file():
                content = found.read_bytes() + found.name.encode()
                assert not any(secret.encode() in content for secret in (str(cookie.value), browser.token, code, hashed))
        await daemon.start()
        headers = {"X-Portico-Sign-In": browser.token, "Cookie": f"portico_sign_in_{urlsplit(daemon.url).port}={cookie.value}"}
        async with anybody(daemon.url) as restarted:
            assert (await restarted.get("/sessions", headers=headers)).status_code == 200
            assert (await restarted.post("/v1/sign-ins", json={"code": code})).status_code == 201
            assert (await restarted.post("/v1/sign-ins", json={"code": code})).status_code == 401
    await daemon.stop()
    log = (tmp_path / "daemon.log").read_text() + daemon.stderr.decode()
    assert "/v1/sign-ins" in log
    assert not any(secret in log for secret in (KEY, code, browser.token, str(cookie.value)))


async def test_a_sign_in_ends_with_a_default_key_that_was_changed(tmp_path: Path) -> None:
    if placement():
        leave_out("starts one gateway with other keys itself")
    config = gateway_config(tmp_path)
    async with run_gateway(config) as portico, signed_in(portico.url) as browser:
        [cookie] = browser.client.cookies.jar
    for keys, status in (((KEY, "another-key-0123456789"), 200), (("another-key-0123456789",), 401)):
        async with serve_gateway(Gateway(parse(config), keys, Redactor())) as portico, anybody(portico.url) as client:
            headers = {"Cookie": f"portico_sign_in_{urlsplit(portico.url).port}={cookie.value}"}
            answer = await client.get("/sessions", headers={**headers, "X-Portico-Sign-In": browser.token})
            assert answer.status_code == status


async def test_bodies_of_other_shapes_are_refused(portico: RunningGateway) -> None:
    for body, status in (
        ({}, 400),
        ({"code": "x", "key": KEY}, 400),
        ({"code": 1}, 400),
        ({"key": None}, 400),
        ([], 400),
        ({"key": "x" * 5000}, 401),
    ):
        async with anybody(portico.url) as client:
            assert KEY not in await expect_error(client.post("/v1/sign-ins", json=body), status), (body, status)
            form = await client.post("/v1/sign-ins", content=f'{{"key": "{KEY}"}}', headers={"Content-Type": "text/plain"})
            assert form.status_code == 415, (body, status)


async def test_a_gateway_without_authentication_is_open(tmp_path: Path) -> None:
    async with serve_gateway(Gateway(parse(gateway_config(tmp_path)), (), Redactor())) as portico, anybody(portico.url) as client:
        assert (await client.get(CURRENT)).json() == {"name": None, "administrator": True, "expiresAt": None, "open": True}
        made = (await client.post("/v1/sign-in-codes")).json()
        assert made == {"code": None, "expiresIn": 60, "url": f"{portico.url}/console/"}
        assert "--no-auth" in await expect_error(client.post("/v1/sign-ins", json={"key": KEY}), 409)


async def test_the_page_of_the_own_origin_is_a_direct_program_of_this_machine(portico: RunningGateway) -> None:
    """So that the console may name any folder of the user for a session, as other programs with a default key do."""
    folder = data_dir(portico).parent / "elsewhere"
    folder.mkdir()
    async with signed_in(portico.url) as browser:
        body = {"agent": {"name": "echo"}, "x-portico": {"cwd": str(folder)}}
        by_key = await portico.client.post("/aap/v3/sessions", json=body)
        by_page = await browser.request("POST", "/aap/v3/sessions", json=body, headers={"Origin": portico.url})
        assert by_page.status_code == by_key.status_code
