"""A client with one key and a session of another key: over no protocol can it read, answer, steer, queue, cancel or end it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import httpx
import pytest

from gateway.protocols.acp.requests import _REQUESTS
from gateway.security.authentication import ADMINISTRATOR
from tests.gateway.protocols.acp.raw_connections import STREAM, initialized, rpc
from tests.support.acp_client import Client, RpcFailed, on_http, on_websocket
from tests.support.daemon import RunningGateway, http_client
from tests.support.named_keys import add_key
from tests.support.requests import create_session, user_message

UNKNOWN = "sess_00000000000000000000000000000000"
PROMPT = [{"type": "text", "text": "go"}]
PARAMS: dict[str, dict[str, Any]] = {
    "session/load": {"cwd": ".", "mcpServers": []},
    "session/resume": {"cwd": ".", "mcpServers": []},
    "session/fork": {"cwd": ".", "mcpServers": []},
    "session/set_mode": {"modeId": "auto"},
    "session/set_model": {"modelId": "x"},
    "session/set_title": {"title": "x"},
    "session/status": {},
    "session/set_config_option": {"configId": "permissions", "value": "auto"},
    "session/prompt": {"prompt": PROMPT},
    "_session/steering": {"prompt": PROMPT},
    "session/close": {},
    "session/delete": {},
}
SESSIONLESS = {"authenticate", "logout", "session/new", "session/list"}
TURN = {"messages": [user_message("go")]}
ANSWER = {"messages": [{"role": "tool_permission", "toolCallId": "n1", "granted": True}]}
PATHS: list[tuple[str, str, Any]] = [
    (method, base + path, body)
    for base in ("/session/ID", "/aap/v1/session/ID", "/aap/v2/session/ID", "/aap/v3/sessions/ID")
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/history?type=full", None),
        ("GET", "/events", None),
        ("GET", "/events?after=0", None),
        ("POST", "/cancel", {}),
        ("POST", "/turns" if "v3" in base else "", TURN),
        ("POST", "/turns" if "v3" in base else "", {**TURN, "x-portico": {"when_busy": "steer"}}),
        ("POST", "/turns" if "v3" in base else "", {**TURN, "x-portico": {"when_busy": "queue"}}),
        ("POST", "/turns" if "v3" in base else "", ANSWER),
        ("GET", "/queue", None),
        ("POST", "/queue", TURN),
        ("PUT", "/queue", {"order": []}),
        ("POST", "/queue/continue", None),
        ("PATCH", "/queue/x", {"message": user_message("go")}),
        ("DELETE", "/queue/x", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
    )
]


class Two(NamedTuple):
    """The gateway, the second key and its client, and the session of the first key, which waits for a permission."""

    portico: RunningGateway
    key: str
    client: httpx.AsyncClient
    session: str


@pytest.fixture
async def two(portico: RunningGateway, write_scenario: Any) -> AsyncIterator[Two]:
    call = {"name": "write_note", "id": "n1", "input": {"path": "a.md", "text": "A"}}
    options = {"scenario": write_scenario([{"tool_call": call}, {"text": "{last_result}"}])}
    second = await add_key(portico.gateway, "second")
    async with http_client(portico.url) as first, http_client(portico.url) as client:
        first.headers["Authorization"] = f"Bearer {await add_key(portico.gateway, 'first')}"
        client.headers["Authorization"] = f"Bearer {second}"
        body = await create_session(first, options=options, grants=[{"name": "write_note"}])
        session = body["sessionId"]
        found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
        assert found.state == "waiting"
        before = len((await first.get(f"/session/{session}")).content)
        yield Two(portico, second, client, session)
        assert found.state == "waiting" and found.run is not None and list(found.run.pending.calls) == ["n1"]
        assert len((await first.get(f"/session/{session}")).content) == before


def test_every_method_is_tried() -> None:
    assert set(_REQUESTS) | {"session/new", "session/prompt"} == set(PARAMS) | SESSIONLESS


async def outcome(client: Client, method: str, session: str) -> Any:
    try:
        return await client.request(method, {"sessionId": session, **PARAMS[method]})
    except RpcFailed as error:
        return error.code, error.message.replace(session, UNKNOWN)


@pytest.mark.parametrize("transport", [on_websocket, on_http])
async def test_acp(two: Two, transport: Callable[..., AbstractAsyncContextManager[Client]]) -> None:
    async with transport(two.portico.url, "script", two.key) as client:
        await client.initialize()
        for method in PARAMS:
            assert await outcome(client, method, two.session) == await outcome(client, method, UNKNOWN), method
        await client.notify("session/cancel", {"sessionId": two.session})
        assert (await client.request("session/list"))["sessions"] == []


async def test_acp_connection_of_another_key(two: Two) -> None:
    url = f"{two.portico.url}/acp/script"
    async with httpx.AsyncClient(headers={"Authorization": two.portico.client.headers["Authorization"]}, timeout=60) as other:
        connection = await initialized(other, url)
        for request in (
            two.client.post(url, json=rpc("session/list", {}), headers=connection),
            two.client.get(url, headers={**connection, **STREAM}),
            two.client.delete(url, headers=connection),
        ):
            assert (await request).status_code == 404
        assert (await other.post(url, json=rpc("session/list", {}), headers=connection)).status_code == 202


async def test_aap_of_every_version(two: Two) -> None:
    statuses = set()
    for method, path, body in PATHS:
        answers = [await two.client.request(method, path.replace("ID", session), json=body) for session in (two.session, UNKNOWN)]
        found = [(answer.status_code, answer.text.replace(two.session, UNKNOWN)) for answer in answers]
        assert found[0] == found[1], (method, path)
        statuses.add(found[0][0])
    assert statuses <= {400, 404, 405} and 404 in statuses
