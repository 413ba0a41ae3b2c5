"""Both transports of the daemon, with raw requests that no client library sends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.observability.logs import TextFormatter
from gateway.security.redaction import Redactor
from tests.gateway.protocols.acp.conftest import WriteScenario, set_options
from tests.gateway.protocols.acp.raw_connections import BEARER, initialized, rpc
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.named_keys import add_key, remove_key
from tests.support.sse import arriving
from tests.support.waiting import wait_until

JSON = {**BEARER, "Content-Type": "application/json"}


INVALID: list[Any] = [
    (b"{", {}, 400, "not JSON"),
    (b"[]", {}, 501, "no batches"),
    (b'"x"', {}, 400, "object"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": {}}', {}, 400, "method: must be a string"),
    (json.dumps(rpc("session/new", {})).encode(), {}, 400, "initialize first"),
    (json.dumps({"method": "initialize", "params": {}}).encode(), {}, 400, "id"),
    (json.dumps(rpc("session/new", {})).encode(), {"Acp-Connection-Id": "gone"}, 404, "no such connection"),
    (b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
    (b"{}", {"Authorization": "Bearer wrong-key"}, 401, "key"),
]


async def test_invalid_http_requests_are_refused(portico: RunningGateway) -> None:
    for body, headers, status, expected in INVALID:
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{portico.url}/acp/echo", content=body, headers={**JSON, **headers})
        assert answer.status_code == status, (body, headers)
        assert expected in answer.json()["error"], (body, headers)
    # Refused websocket gets a status and an error text.
    for path, headers, status in (("echo", {}, 401), ("no-such-agent", BEARER, 400)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws{portico.url[4:]}/acp/{path}", additional_headers=headers, proxy=None)
        assert refused.value.response.status_code == status, (path, headers)
        assert json.loads(refused.value.response.body)["error"], (path, headers)
    # Connection is unknown at another agents path.
    async with httpx.AsyncClient(headers=JSON, timeout=60) as client:
        connection_header = await initialized(client, f"{portico.url}/acp/echo")
        answer = await client.post(f"{portico.url}/acp/script", json=rpc("session/list", {}), headers=connection_header)
        assert answer.status_code == 404
        assert (await client.post(f"{portico.url}/acp/no-such-agent", json=rpc("initialize", {}))).status_code == 400


async def test_session_and_accept_headers_are_checked(portico: RunningGateway) -> None:
    url = f"{portico.url}/acp/echo"
    async with httpx.AsyncClient(headers=JSON, timeout=60) as client:
        connection_header = await initialized(client, url)
        prompt = rpc("session/prompt", {"sessionId": "a", "prompt": []}, 2)
        missing = await client.post(url, json=prompt, headers=connection_header)
        assert (missing.status_code, "Acp-Session-Id: missing" in missing.text) == (400, True)
        other = await client.post(url, json=prompt, headers={**connection_header, "Acp-Session-Id": "b"})
        assert (other.status_code, "params.sessionId" in other.text) == (400, True)
        for method in ({}, [], 3, None):
            invalid = {"jsonrpc": "2.0", "id": 3, "method": method, "params": {"sessionId": "a"}}
            refused = await client.post(url, json=invalid, headers=connection_header)
            assert (refused.status_code, refused.json()) == (400, {"error": "method: must be a string"})
        unknown = await client.post(url, json=prompt, headers={**connection_header, "Acp-Session-Id": "a"})
        assert unknown.status_code == 202
        assert (await client.get(url, headers={**connection_header, "Accept": "application/json"})).status_code == 406
        assert (await client.get(url, headers={"Accept": "text/event-stream"})).status_code == 400
        assert (await client.put(url, headers=connection_header)).status_code == 405
        async with client.stream("GET", url, headers={**connection_header, "Accept": "text/event-stream"}) as first:
            assert first.status_code == 200
            again = await client.get(url, headers={**connection_header, "Accept": "text/event-stream"})
            assert again.status_code == 409
            assert (await anext(arriving(first))).json()["error"]["code"] == -32002
        assert (await client.delete(url, headers=connection_header)).status_code == 202
        assert (await client.delete(url, headers=connection_header)).status_code == 404


async def test_websocket_is_logged_and_counted_once_when_it_closes(
    portico: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.access_log")
    caplog.handler.setFormatter(TextFormatter(Redactor()))

    async def check_logged(request: str, outcome: str, route: str, status: int) -> None:
        await wait_until(lambda: f"[{request} -]" in caplog.text)
        (line,) = [line for line in caplog.text.splitlines() if f"[{request} " in line]
        assert f"INFO gateway.access_log [{request} -]: GET /{outcome} in " in line
        labels = {"method": "GET", "route": route, "status": str(status)}
        assert portico.gateway.metrics.registry.get_sample_value("portico_http_requests_total", labels) == 1

    def open_socket(path: str, request: str, **headers: str) -> Any:
        named = {**headers, "X-Request-Id": request}
        return connect(f"ws{portico.url[4:]}/{path}", additional_headers=named, proxy=None)

    async with open_socket("acp/echo?x=1", "whole", **BEARER) as socket:
        assert socket.response.headers["X-Request-Id"] == "whole"
        await socket.send(json.dumps(rpc("initialize", {"protocolVersion": 1})))
        await socket.recv()
        assert caplog.text == ""
    await check_logged("whole", "acp/echo: 101", "/acp/{agent}", 101)
    assert "cut off" not in caplog.text
    for path, headers, route, status in (
        ("acp/echo", {}, "/acp/{agent}", 401),
        ("acp/no-such-agent", BEARER, "/acp/{agent}", 400),
        ("none", BEARER, "unmatched", 403),
    ):
        with pytest.raises(InvalidStatus) as refused:
            await open_socket(path, f"refused-{status}", **headers)
        assert refused.value.response.status_code == status
        await check_logged(f"refused-{status}", f"{path}: {status}", route, status)


async def test_websocket_accepts_the_key_as_a_subprotocol_and_binary_frames(portico: RunningGateway) -> None:
    subprotocol: Any = f"bearer.{KEY}"
    async with connect(f"ws{portico.url[4:]}/acp/echo", subprotocols=[subprotocol], proxy=None) as socket:
        await socket.send(json.dumps(rpc("initialize", {"protocolVersion": 1})).encode() + b"\n")
        assert json.loads(await socket.recv())["result"]["protocolVersion"] == 1
        await socket.send("{nonsense")
        assert json.loads(await socket.recv())["error"]["code"] == -32700
        await socket.send(json.dumps(rpc("session/list", {}, 2)))
        assert json.loads(await socket.recv())["id"] == 2


async def test_gateway_shutdown_closes_streams_and_websockets(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path)) as portico, httpx.AsyncClient(headers=JSON, timeout=20) as client:
        url = f"{portico.url}/acp/echo"
        connection_header = await initialized(client, url)
        streaming = await client.send(
            client.build_request("GET", url, headers={**connection_header, "Accept": "text/event-stream"}), stream=True
        )
        socket = await connect(f"ws{portico.url[4:]}/acp/echo", additional_headers=BEARER, proxy=None)
        await portico.gateway.stop_runs()
        async with asyncio.timeout(60):
            await streaming.aread()
            await socket.wait_closed()
        assert socket.close_code == 1001


@pytest.mark.parametrize("trigger", ["its next message", "the next event"])
async def test_websocket_is_closed_after_its_key_is_removed(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path, trigger: str
) -> None:
    headers = {"Authorization": f"Bearer {await add_key(portico.gateway, 'phone')}"}
    scenario = write_scenario([{"text": "first"}, {"wait_for_file": "go"}, {"text": "secret"}])
    async with asyncio.timeout(60), connect(f"ws{portico.url[4:]}/acp/script", additional_headers=headers, proxy=None) as socket:

        async def ask(number: int, method: str, params: dict[str, Any]) -> None:
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))

        await ask(1, "initialize", {"protocolVersion": 1})
        await socket.recv()
        await ask(2, "session/new", {"cwd": ".", "mcpServers": []})
        session = json.loads(await socket.recv())["result"]["sessionId"]
        await set_options(portico.gateway, session, scenario=scenario)
        await ask(3, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]})
        while "first" not in str(await socket.recv()):
            pass
        await remove_key(portico.gateway, "phone")
        if trigger == "its next message":
            await ask(4, "session/list", {})
        else:
            (tmp_path / "scenes" / "go").touch()
        with pytest.raises(ConnectionClosed) as closed:
            while "secret" not in str(frame := await socket.recv()) and '"id":4' not in str(frame):
                pass
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        assert "this API key is unknown" in closed.value.rcvd.reason
