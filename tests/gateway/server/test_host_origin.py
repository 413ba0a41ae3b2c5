"""Host and Origin checks: protection against DNS rebinding and against pages of other origins, and CORS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.daemon import KEY, Daemon, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.raw_http import send_raw
from tests.support.requests import create_session, expect_error, session_body
from tests.support.sse import parse_frames

PATHS = [
    ("GET", "/healthz"),
    ("GET", "/meta"),
    ("GET", "/sessions"),
    ("GET", "/nothing"),
    ("PUT", "/session"),
    ("POST", "/v1/execute"),
]
UIS = ["http://localhost:*", "tauri://localhost", "app://portico", "https://ui.example.org", "vscode-webview://*"]


async def _assert_no_effect(portico: RunningGateway) -> None:
    assert (await portico.client.get("/sessions")).json() == {"sessions": []}
    assert not await portico.gateway.store.runs.unfinished()


async def test_foreign_host_is_rejected(portico: RunningGateway) -> None:
    port = urlsplit(portico.url).port
    for host in (
        "evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example",
        "10.0.0.1", "0.0.0.0", "[::]", "[2001:db8::1]:80", "evil.example@localhost", "localhost:80:80", "", "[::1", "localhost/x",
    ):  # fmt: skip
        for method, path in PATHS if host == "evil.example" else PATHS[-1:]:
            text = await expect_error(
                portico.client.request(method, path, headers={"Host": host}, json=session_body("echo")), 403
            )
            assert "server.hosts" in text or "Host header" in text
    await _assert_no_effect(portico)


async def test_loopback_hosts_are_accepted(portico: RunningGateway) -> None:
    port = urlsplit(portico.url).port
    names = [
        "127.0.0.1",
        f"127.0.0.1:{port}",
        "127.8.8.8",
        "localhost",
        f"LocalHost:{port}",
        "localhost.",
        f"[::1]:{port}",
        "localhost:1",
    ]
    for host in [*names, "localhost:1", "[::ffff:127.0.0.1]"]:
        assert (await portico.client.get("/sessions", headers={"Host": host})).status_code == 200, host


async def test_missing_and_repeated_host_are_rejected(portico: RunningGateway) -> None:
    for head in (
        b"GET /meta HTTP/1.0\r\n\r\n",
        b"GET /meta HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n",
    ):
        status, response = await send_raw(portico.url, head)
        assert status == 403
        assert b"Host header" in response


async def test_configured_hosts_are_accepted(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"hosts": ["Gateway.lan", "*.example.org", "10.0.0.7"]})) as portico:
        for host, status in (
            ("gateway.lan", 200), ("GATEWAY.LAN:7700", 200), ("a.example.org", 200), ("10.0.0.7", 200),
            ("a.b.example.org:1", 200), ("example.org", 403), ("evilexample.org", 403), ("sub.gateway.lan", 403),
            ("10.0.0.8", 403),
        ):  # fmt: skip
            assert (await portico.client.get("/meta", headers={"Host": host})).status_code == status, host


async def test_any_ip_address_is_accepted_when_listening_on_all_interfaces(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"host": "0.0.0.0"})) as portico:
        for host, status in (("192.168.7.7:7700", 200), ("[2001:db8::1]", 200), ("localhost", 200), ("evil.example", 403)):
            assert (await portico.client.get("/meta", headers={"Host": host})).status_code == status, host


async def test_other_origins_are_rejected_by_default(portico: RunningGateway) -> None:
    for origin in (
        "https://evil.example",
        "http://localhost:3000",
        "http://127.0.0.1:3000",
        "null",
        "",
        "file://",
        "tauri://localhost",
    ):
        headers = {"Origin": origin}
        for method, path in PATHS if origin == "https://evil.example" else PATHS[-1:]:
            text = await expect_error(portico.client.request(method, path, headers=headers, json=session_body("echo")), 403)
            assert "server.origins" in text
        asked = {**headers, "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization"}
        refused = await portico.client.options("/session", headers=asked)
        assert refused.status_code == 403
        assert not [name for name in refused.headers if name.startswith("access-control")]
    await _assert_no_effect(portico)


async def test_the_own_origin_is_accepted_while_the_console_is_served(portico: RunningGateway, tmp_path: Path) -> None:
    port = urlsplit(portico.url).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "127.0.0.1"):
        for scheme in ("http", "https"):
            found = await portico.client.get("/sessions", headers={"Host": host, "Origin": f"{scheme}://{host}"})
            assert found.status_code == 200 and not [name for name in found.headers if name.startswith("access-control")]
    for host, origin in (
        (f"127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"), (f"127.0.0.1:{port}", f"http://localhost:{port}"),
        (f"127.0.0.1:{port}", "http://127.0.0.1"), (f"127.0.0.1:{port}", f"ftp://127.0.0.1:{port}"),
        (f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/"), (f"127.0.0.1:{port}", f"http://127.0.0.1:{port}.evil.example"),
    ):  # fmt: skip
        await expect_error(portico.client.get("/sessions", headers={"Host": host, "Origin": origin}), 403)
    async with run_gateway(gateway_config(tmp_path / "off", server={"console": False})) as without:
        await expect_error(without.client.get("/sessions", headers={"Origin": without.url}), 403)


async def test_an_origin_of_any_host_is_not_the_own(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"hosts": ["*", "gateway.lan"]})) as portico:
        for host, status in (("evil.example", 403), ("gateway.lan", 200), ("gateway.lan:8000", 200), ("localhost:1", 200)):
            found = await portico.client.get("/sessions", headers={"Host": host, "Origin": f"http://{host}"})
            assert found.status_code == status, host


async def test_cross_site_requests_without_origin_are_rejected(portico: RunningGateway) -> None:
    for site, mode, status in (
        ("cross-site", "no-cors", 403), ("same-site", "no-cors", 403), ("cross-site", "cors", 403),
        ("cross-site", "websocket", 403), ("cross-site", "navigate", 200), ("none", "navigate", 200),
        ("same-origin", "cors", 200),
    ):  # fmt: skip
        found = await portico.client.get("/meta", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode})
        assert found.status_code == status, (site, mode)
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cross-origin-resource-policy"] == "same-origin"


async def test_websocket_of_a_foreign_page_is_rejected(portico: RunningGateway) -> None:
    for who in (b"Host: localhost\r\nOrigin: https://evil.example", b"Host: evil.example"):
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        for path in (b"/acp", b"/acp/echo", b"/meta"):
            head = b"GET %b HTTP/1.1\r\n%b\r\n%bAuthorization: Bearer %b\r\n\r\n" % (path, who, upgrade, KEY.encode())
            reader, writer = await asyncio.open_connection(urlsplit(portico.url).hostname, urlsplit(portico.url).port)
            writer.write(head)
            assert (await asyncio.wait_for(reader.readline(), 60)).split()[1] == b"403"
            writer.close()


async def test_bodies_that_are_not_json_are_rejected(portico: RunningGateway) -> None:
    """A page can post these content types without a preflight request."""
    body = '{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x"}], "driver": "echo", "task": "x"}'
    session = (await create_session(portico.client, "echo"))["sessionId"]
    before = (await portico.client.get(f"/session/{session}")).json()
    for kind in (
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        None,
    ):
        headers = {} if kind is None else {"Content-Type": kind}
        for method, path in (("PUT", "/session"), ("POST", f"/session/{session}"), ("POST", "/v1/execute")):
            text = await expect_error(portico.client.request(method, path, content=body, headers=headers), 415)
            assert "Content-Type: application/json" in text
    assert (await portico.client.get(f"/session/{session}")).json() == before
    assert (await portico.client.get("/sessions")).json() == {"sessions": [session]}
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json"):
        assert (await portico.client.put("/session", content=body, headers={"Content-Type": kind})).status_code == 201


@pytest.fixture
async def with_uis(tmp_path: Path) -> Any:
    async with run_gateway(gateway_config(tmp_path, server={"origins": UIS})) as portico:
        yield portico


GOOD = [
    "http://localhost",
    "http://localhost:5173",
    "tauri://localhost",
    "app://portico",
    "https://ui.example.org",
    "vscode-webview://1a2b3c",
]
BAD = [
    "https://localhost:3000",
    "http://localhost.evil.example", "http://localhost:3000.evil.example", "http://evil.example", "null",
    "http://localhost:", "http://localhost:x", "https://ui.example.org:8443", "https://uiXexample.org", "app://portico.evil", "tauri://x",
    "http://localhost:5173, http://localhost:5174", "http://localhost:5173/", "vscode-webview://a/b", "xhttp://localhost:1",
]  # fmt: skip


async def test_configured_origins_are_accepted_and_errors_have_their_headers(with_uis: RunningGateway) -> None:
    for origin in GOOD:
        found = await with_uis.client.get("/sessions", headers={"Origin": origin})
        assert found.status_code == 200, origin
        assert found.headers["access-control-allow-origin"] == origin
        assert "Origin" in found.headers["vary"]
        exposed = found.headers["access-control-expose-headers"].lower()
        assert all(name in exposed for name in ("x-request-id", "retry-after", "acp-connection-id"))
    for origin in BAD:
        found = await with_uis.client.get("/sessions", headers={"Origin": origin})
        assert found.status_code == 403, origin
        assert "access-control-allow-origin" not in found.headers
        assert (await with_uis.client.get("/meta")).status_code == 200, "requests without Origin are accepted"
    for request, status in (
        (with_uis.client.get("/sessions", headers={"Origin": GOOD[1], "Authorization": "Bearer no"}), 401),
        (with_uis.client.get("/session/none", headers={"Origin": GOOD[1]}), 404),
        (with_uis.client.put("/session", headers={"Origin": GOOD[1]}, json={}), 400),
    ):
        found = await request
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (status, GOOD[1])


async def test_preflight_request_needs_no_key(with_uis: RunningGateway) -> None:
    requested_headers = "authorization,content-type,last-event-id,idempotency-key,x-request-id,acp-connection-id"
    headers = {"Access-Control-Request-Headers": requested_headers, "Access-Control-Request-Private-Network": "true"}
    async with httpx.AsyncClient(base_url=with_uis.url, verify=False, timeout=60) as stranger:
        for method, path in (
            ("PUT", "/session"),
            ("POST", "/session/sess_x"),
            ("DELETE", "/session/sess_x"),
            ("POST", "/v1/execute"),
        ):
            asked = {**headers, "Origin": "tauri://localhost", "Access-Control-Request-Method": method}
            found = await stranger.options(path, headers=asked)
            assert found.status_code == 200, found.text
            assert found.headers["access-control-allow-origin"] == "tauri://localhost"
            assert method in found.headers["access-control-allow-methods"]
            assert all(name in found.headers["access-control-allow-headers"] for name in requested_headers.split(","))
            assert found.headers["access-control-allow-private-network"] == "true"
            assert (await stranger.options(path, headers={**asked, "Origin": "https://evil.example"})).status_code == 403


async def test_stream_is_sent_to_a_page_without_buffering(
    tmp_path: Path, write_scenario: Callable[..., str], clock: ManualClock
) -> None:
    """No middleware buffers the stream, and its headers ask proxies not to."""
    name = write_scenario([{"text": "first"}, {"hang": True}])
    async with run_gateway(gateway_config(tmp_path, server={"origins": UIS, "keep_alive": 0.7}), clock) as portico:
        body = session_body(options={"scenario": name}, stream="delta")
        async with portico.client.stream("PUT", "/session", json=body, headers={"Origin": "http://localhost:9"}) as stream:
            assert stream.headers["access-control-allow-origin"] == "http://localhost:9"
            assert stream.headers["cache-control"] == "no-cache, no-transform"
            assert stream.headers["x-accel-buffering"] == "no"
            seen = ""
            async for text in stream.aiter_text():
                seen += text
                if ": keep-alive" in seen:
                    break
                if "first" in seen:
                    await clock.expire(0.7)
        assert [event for event, _ in parse_frames(seen)][:2] == ["session_start", "turn_start"]
        await portico.client.delete(f"/session/{parse_frames(seen)[0][1]['sessionId']}")


async def test_rejected_hosts_and_origins_are_logged_once(daemon: Daemon) -> None:
    await daemon.start()
    async with daemon.client() as client:
        for _ in range(3):
            await expect_error(client.get("/meta", headers={"Origin": "https://evil.example"}), 403)
        for number in range(300):
            await expect_error(client.get("/meta", headers={"Host": f"evil{number}.example"}), 403)
    await daemon.stop()
    log = daemon.stderr.decode()
    assert log.count("https://evil.example") == 1
    assert "server.origins" in log
    assert log.count("server.hosts") == 99
