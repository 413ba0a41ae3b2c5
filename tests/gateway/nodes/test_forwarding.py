"""Requests for sessions of another node: forwarded with the caller, answered as by that node, streamed as they come."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.cluster.node_keys import NodeKeys
from gateway.config import parse
from gateway.errors import ConfigError
from gateway.installation import command_for_extra
from gateway.security.authentication import ADMINISTRATOR, Caller
from gateway.security.redaction import Redactor
from gateway.server.app import create_app
from tests.gateway.nodes.cluster import ELSEWHERE, NODE_KEY, Cluster, run_cluster
from tests.gateway.nodes.fake_node import FakeRequest, fake_node
from tests.gateway.nodes.two_nodes import ENCRYPTION_KEY
from tests.support.aap_client import AapClient, BaseUrl
from tests.support.daemon import KEY, gateway_config, http_client
from tests.support.manual_clock import ManualClock
from tests.support.raw_http import connect
from tests.support.requests import create_session, execute, expect_error, send_turn, user_message
from tests.support.sse import parse_frames
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


async def outcomes(cluster: Cluster) -> dict[str, float]:
    """The forwarded requests of the node `a`, by outcome."""
    text = (await cluster.a.client.get("/metrics")).text
    counted = re.findall(r'^portico_forwarded_requests_total\{outcome="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {outcome: float(number) for outcome, number in counted}


# -- the response is that of the other node -----------------------------------------------------------------------------------


async def test_sessions_of_another_node_are_used_as_those_of_this_one(cluster: Cluster, base: BaseUrl) -> None:
    aap = AapClient(cluster.a.client, base)
    session = (await aap.create_session("echo"))["sessionId"]
    assert cluster.placement.sessions == {session: "b"}
    assert cluster.b.gateway.sessions.held and not cluster.a.gateway.sessions.held
    turn = await aap.send_turn(session, "again")
    assert "again" in json.dumps(turn)
    streamed = await aap.stream_turn(session, user_message("streamed"), stream="delta")
    assert streamed[-1][0] == "turn_stop"
    found = await aap.get_session(session)
    assert found["sessionId"] == session
    assert (await aap.delete(session)).status_code in (200, 202, 204)
    assert (await aap.get(session)).status_code == 404


async def test_responses_are_those_of_the_other_node(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = cluster.a.client
    assert (await execute(client, "a task", "echo"))[-1]["kind"] == "session_end"
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
    wrong = await client.post("/v1/messages", json={"model": "echo", "max_tokens": 5, "messages": []})
    assert wrong.status_code == 400 and wrong.json()["type"] == "error"
    cluster.placement.sessions["sess_none"] = "b"
    there, here = [await node.client.get("/session/sess_none") for node in (cluster.b, cluster.a)]
    assert here.status_code == 404 and here.json() == there.json()
    assert sorted(here.headers) == sorted(there.headers)
    session = (await create_session(client, "echo"))["sessionId"]
    large = {"messages": [user_message("x" * 300_000 + "y")]}
    headers = {"X-Request-Id": "my-request", "Idempotency-Key": "k"}
    answer = await client.post(f"/session/{session}", json=large, headers=headers)
    assert answer.json()["messages"][-1]["content"].endswith("y")
    names = [name for name, _ in answer.headers.raw]
    assert len({name.lower() for name in names}) == len(names)
    assert answer.headers["x-request-id"] == "my-request"
    assert not [name for name in answer.headers if name.startswith("portico")]
    # Its key holds at both nodes.
    again = await cluster.b.client.post(f"/session/{session}", json=large, headers=headers)
    assert again.json() == answer.json()
    assert await outcomes(cluster) == {"answered": 5}
    lines = [record.message for record in caplog.records if record.name == "gateway.access_log"]
    assert any("by the node b" in line for line in lines) and any("for the node a" in line for line in lines)
    assert NODE_KEY not in caplog.text


async def test_a_stream_is_relayed_as_it_comes(cluster: Cluster, tmp_path: Path, write_scenario: WriteScenario) -> None:
    steps = [{"text": "first"}, {"wait_for_file": "go"}, {"text": "second"}]
    scenario = write_scenario(steps)
    body = {"agent": {"name": "script", "options": {"scenario": scenario}}, "messages": [user_message()], "stream": "delta"}
    async with cluster.a.client.stream("PUT", "/session", json=body) as answer:
        received = ""
        chunks = answer.aiter_text()
        while "first" not in received:
            received += await asyncio.wait_for(anext(chunks), 60)
        # The agent waits: the first text is here before there is a second one.
        assert "second" not in received
        (tmp_path / "scenes" / "go").touch()
        async for chunk in chunks:
            received += chunk
    assert "second" in received and parse_frames(received)[-1][0] == "turn_stop"


async def test_a_large_body_is_not_kept_while_its_stream_is_relayed(cluster: Cluster) -> None:
    size, begun, go = 20_000_000, asyncio.Event(), asyncio.Event()

    async def respond(request: FakeRequest) -> None:
        assert len(request.body) > size
        request.body = b""
        await request.begin(200, "content-type: text/event-stream", "transfer-encoding: chunked")
        await request.send(b"6\r\ndata: \r\n")
        begun.set()
        await go.wait()
        await request.send(b"0\r\n\r\n")

    async with fake_node(respond) as url:
        cluster.placement.addresses["b"] = url
        content = b'{"driver": "echo", "task": "%b"}' % (b"x" * size)
        tracemalloc.start()
        headers = {"Content-Type": "application/json"}
        async with cluster.a.client.stream("POST", "/v1/execute", content=iter_once([content]), headers=headers) as answer:
            del content
            await asyncio.wait_for(begun.wait(), 60)
            await anext(answer.aiter_bytes())
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            go.set()
        assert kept < size / 2


async def iter_once(parts: list[bytes]) -> AsyncIterator[bytes]:
    while parts:
        yield parts.pop()


# -- who may do what -----------------------------------------------------------------------------------------------------------


async def test_the_other_node_knows_the_caller_that_this_one_has_authenticated(cluster: Cluster) -> None:
    key = await cluster.a.gateway.credentials.add_key("ci")
    other = await cluster.a.gateway.credentials.add_key("other")
    async with http_client(cluster.a.url) as ci:
        ci.headers["Authorization"] = f"Bearer {key}"
        session = (await create_session(ci, "echo"))["sessionId"]
        record = await cluster.b.gateway.store.sessions.get(session)
        assert record is not None and record.owner == "ci"
        await send_turn(ci, session, "again")
        ci.headers["Authorization"] = f"Bearer {other}"
        await expect_error(ci.post(f"/session/{session}", json={"messages": [user_message()]}), 404)
        ci.headers["Authorization"] = "Bearer unknown-key"
        await expect_error(ci.post(f"/session/{session}", json={"messages": [user_message()]}), 401)


async def test_a_stream_ends_when_the_key_is_revoked(cluster: Cluster, tmp_path: Path, write_scenario: WriteScenario) -> None:
    key = await cluster.a.gateway.credentials.add_key("ci")
    scenario = write_scenario([{"text": "first"}, {"wait_for_file": "go"}, {"text": "second"}])
    body = {"agent": {"name": "script", "options": {"scenario": scenario}}, "messages": [user_message()], "stream": "delta"}
    async with http_client(cluster.a.url) as ci:
        ci.headers["Authorization"] = f"Bearer {key}"
        async with ci.stream("PUT", "/session", json=body) as answer:
            chunks, received = answer.aiter_text(), ""
            while "first" not in received:
                received += await asyncio.wait_for(anext(chunks), 60)
            await cluster.a.gateway.credentials.remove_key("ci")
            (tmp_path / "scenes" / "go").touch()
            received += "".join([chunk async for chunk in chunks])
    assert "second" not in received


def signed(target: str, body: bytes = b"", caller: Caller = ADMINISTRATOR, **other: Any) -> dict[str, str]:
    """The headers of a request that the node `a` signs for the node `b`. Its clock is `ahead` by so many seconds."""
    clock = ManualClock()
    clock.set_wall_clock(other.get("ahead", 0.0))
    keys = NodeKeys(other.get("sender", "a"), [other.get("key", NODE_KEY)], clock)
    sent = keys.sign(other.get("to", "b"), other.get("method", "POST"), target.encode(), body, caller)
    return {"Portico-Node": sent.signature, "Portico-Caller": sent.caller, "Content-Type": "application/json"}


TASK = {"driver": "echo", "task": "hello"}
BODY = json.dumps(TASK).encode()
REFUSED: dict[str, dict[str, Any]] = {
    "another key": {"key": "another-key-0123456789-0123456789-0123"},
    "another node": {"to": "c"},
    "another method": {"method": "PUT"},
    "another target": {"target": "/v1/execute?a"},
    "another body": {"body": BODY.replace(b"hello", b"hullo")},
    "expired": {"ahead": -400},
    "of the future": {"ahead": 400},
}


@pytest.fixture
def stranger(cluster: Cluster) -> httpx.AsyncClient:
    """A client of the node `b` without an API key."""
    cluster.b.client.headers.pop("Authorization")
    return cluster.b.client


async def test_a_signature_needs_no_api_key_and_works_once_for_its_request(
    stranger: httpx.AsyncClient, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for name, other in REFUSED.items():
        headers = signed(**{"target": "/v1/execute", "body": BODY, **other})
        # Also with a valid key: the headers are those of a node.
        for more in ({}, {"Authorization": f"Bearer {KEY}"}):
            text = await expect_error(stranger.post("/v1/execute", content=BODY, headers={**headers, **more}), 401)
            assert "Portico-Node" in text and text in caplog.text, name
        assert headers["Portico-Node"].split()[-1] not in caplog.text and NODE_KEY not in caplog.text
    headers = signed("/v1/execute", BODY)
    caller = signed("/v1/execute", BODY, Caller("x", False))["Portico-Caller"]
    await expect_error(stranger.post("/v1/execute", content=BODY, headers={**headers, "Portico-Caller": caller}), 401)
    for name in ("Portico-Node", "Portico-Caller"):
        # A client may send neither.
        await expect_error(cluster.a.client.get("/readyz", headers={name: headers[name]}), 401)
        await expect_error(cluster.a.client.get("/readyz", headers=[(name, headers[name])] * 2), 401)
    assert not cluster.placement.asked
    headers = signed("/v1/execute?x=1", BODY)
    answer = await stranger.post("/v1/execute?x=1", content=BODY, headers=headers)
    assert answer.status_code == 200 and len(answer.headers["portico-node-proof"]) == 64
    assert "came before" in await expect_error(stranger.post("/v1/execute?x=1", content=BODY, headers=headers), 401)


async def test_a_body_without_a_valid_signature_is_not_read(cluster: Cluster) -> None:
    reader, writer = await connect(cluster.b.url)
    headers = signed("/v1/execute", BODY, key="another-key-0123456789-0123456789-0123")
    lines = [
        "POST /v1/execute HTTP/1.1",
        "Host: localhost",
        "Content-Length: 1000000",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert b" 401 " in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


async def test_a_gateway_that_is_no_node_takes_the_headers_for_any_other(portico: Any) -> None:
    headers = signed("/v1/execute", BODY)
    async with httpx.AsyncClient(base_url=portico.url) as client:
        await expect_error(client.post("/v1/execute", content=BODY, headers=headers), 401)
    assert (await portico.client.post("/v1/execute", content=BODY, headers=headers)).status_code == 200


async def test_what_authenticates_a_client_is_not_sent_to_the_other_node(cluster: Cluster) -> None:
    seen: list[dict[str, str]] = []

    async def respond(request: FakeRequest) -> None:
        seen.append(request.headers())
        await request.begin(204)

    async with fake_node(respond) as url:
        cluster.placement.addresses["b"] = url
        secrets = {
            "Cookie": "a=b",
            "X-Api-Key": KEY,
            "Connection": "x-mine",
            "X-Mine": "1",
            "Origin": cluster.a.url,
            "X-Kept": "yes",
        }
        answer = await cluster.a.client.post("/v1/execute", json=TASK, headers=secrets)
    assert answer.status_code == 204
    assert KEY not in str(seen)
    assert not {"authorization", "cookie", "x-api-key", "x-mine", "origin"} & seen[0].keys()
    assert seen[0]["x-kept"] == "yes" and seen[0]["x-request-id"] == answer.headers["x-request-id"]


# -- quotas --------------------------------------------------------------------------------------------------------------------


async def test_a_forwarded_request_is_one_connection_here_and_one_stream_there(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    scenario = write_scenario([{"text": "first"}, {"wait_for_file": "go"}])
    body = {"agent": {"name": "script", "options": {"scenario": scenario}}, "messages": [user_message()], "stream": "delta"}
    limits = {"connections_per_key": 1, "streams_per_key": 1}
    async with run_cluster(tmp_path, "a", "b", limits=limits) as cluster:
        cluster.placement.creator = "b"
        async with cluster.a.client.stream("PUT", "/session", json=body) as answer:
            assert answer.status_code == 200
            assert "connections" in await expect_error(cluster.a.client.get("/session/x"), 429)
            # The connection is not counted by the other node; the stream is.
            assert "event streams" in await expect_error(cluster.b.client.put("/session", json=body), 429)
            (tmp_path / "scenes" / "go").touch()
            await answer.aread()
        assert (await cluster.b.client.put("/session", json=body)).status_code == 200
        assert (await cluster.a.client.put("/session", json=body)).status_code == 200
        for running in cluster.nodes.values():
            assert not running.gateway.quotas.connections.held and not running.gateway.quotas.streams.held


# -- clients and nodes that go -------------------------------------------------------------------------------------------------


async def test_the_other_node_notices_that_the_client_is_gone(tmp_path: Path, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"text": "first"}, {"wait_for_file": "never"}])
    body = {"agent": {"name": "script", "options": {"scenario": scenario}}, "messages": [user_message()], "stream": "delta"}
    async with run_cluster(tmp_path, "a", "b", server={"on_disconnect": "cancel"}) as cluster:
        cluster.placement.creator = "b"
        async with cluster.a.client.stream("PUT", "/session", json=body) as answer:
            await anext(answer.aiter_text())
            [session] = cluster.b.gateway.sessions.held
            assert session.busy
        await wait_until(lambda: not session.busy)
        assert await outcomes(cluster) == {"disconnected": 1}
        assert not cluster.a.gateway.quotas.connections.held


async def test_a_node_that_has_lost_its_sessions_ends_the_streams_from_it(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def respond(request: FakeRequest) -> None:
        await request.begin(200, "content-type: text/event-stream", "transfer-encoding: chunked")
        await request.send(b"6\r\ndata: \r\n")
        assert await request.reader.read() == b""

    async with fake_node(respond) as url:
        cluster.placement.addresses["b"] = url
        async with cluster.a.client.stream("POST", "/v1/execute", json=TASK) as answer:
            received = answer.aiter_raw()
            assert await anext(received) == b"data: "
            cluster.a.gateway.node_lost("c")
            cluster.a.gateway.node_lost("b")
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(received)
    assert await outcomes(cluster) == {"broken": 1}
    # It is cut off on purpose: for whoever reads the log, nothing of this node has failed.
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]


async def test_what_a_client_is_told_if_the_other_node_fails(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is repeated that the other node may have begun, and no address is told."""
    client, requests = cluster.a.client, list[bytes]()

    async def asked(address: str) -> httpx.Response:
        cluster.placement.addresses["b"] = address
        cluster.placement.asked.clear()
        answer = await client.post("/v1/execute", json=TASK)
        assert "127.0.0.1" not in answer.text
        return answer

    async def end(request: FakeRequest) -> None:
        requests.append(request.body)

    async with fake_node(end) as url:
        answer = await asked(url)
    assert answer.status_code == 502 and "look what was done before you repeat it" in answer.json()["error"]
    assert len([body for body in requests if body]) == 1
    assert await outcomes(cluster) == {"broken": 1}

    answer = await asked(ELSEWHERE)
    assert answer.status_code == 503 and answer.headers["retry-after"] == "10"
    assert "cannot be reached" in answer.json()["error"]
    # The node was looked for once more, in case another one has the session by now.
    assert cluster.placement.asked == ["a", "a"]
    assert await outcomes(cluster) == {"broken": 1, "unreachable": 1}

    for proof in (None, "0" * 64, "x"):

        async def plant(request: FakeRequest, proof: str | None = proof) -> None:
            await request.begin(200, "content-type: text/plain", "x-planted: 1", "content-length: 7", proof=proof)
            await request.send(b"planted")

        async with fake_node(plant) as url:
            answer = await asked(url)
        assert answer.status_code == 502 and "planted" not in str(answer.headers) + answer.text
        assert "could not be verified" in answer.json()["error"]
    assert "the answer of the node b to a forwarded request is refused" in caplog.text
    assert await outcomes(cluster) == {"broken": 1, "unreachable": 1, "unproven": 3}

    cluster.b.gateway.node_keys = NodeKeys("b", ["another-node-key-for-tests-0123456789abcdef"])
    answer = await asked(cluster.b.url)
    assert answer.status_code == 502 and "could not be verified" in answer.json()["error"]
    # Another node could have it by now.
    assert cluster.placement.asked == ["a", "a"]
    assert await outcomes(cluster) == {"broken": 1, "unreachable": 1, "unproven": 3, "refused": 1}


async def test_a_node_that_shuts_down_says_so(cluster: Cluster) -> None:
    for close in cluster.a.gateway.close_last:
        await close()
    answer = await cluster.a.client.post("/v1/execute", json=TASK)
    assert answer.status_code == 503 and "this node shuts down" in answer.json()["error"]
    assert answer.headers["retry-after"] == "1"


async def test_a_node_that_shuts_down_ends_its_forwarded_requests(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def respond(request: FakeRequest) -> None:
        begun.set()
        assert await request.reader.read() == b""

    async with fake_node(respond) as url, run_cluster(tmp_path, "a") as cluster:
        cluster.placement.creator, cluster.placement.addresses["b"] = "b", url
        asking = asyncio.create_task(cluster.a.client.post("/v1/execute", json=TASK))
        await asyncio.wait_for(begun.wait(), 60)
        await cluster.a.gateway.stop_runs()
        assert (await asking).status_code == 502


# -- sessions that move --------------------------------------------------------------------------------------------------------


async def test_a_session_that_has_moved_is_looked_for_again(tmp_path: Path) -> None:
    async with run_cluster(tmp_path, "a", "b", "c") as cluster:
        cluster.placement.creator = "c"
        session = (await create_session(cluster.a.client, "echo"))["sessionId"]
        placement, checked = cluster.placement, cluster.placement.check
        old = ["b", "c"]

        def check(node: str, log_id: str | None) -> None:
            if node == "a" and old:
                placement.sessions[session] = old.pop(0)
            elif node == "b":
                placement.sessions[session] = "c"
            checked(node, log_id)

        placement.check = check  # type: ignore[method-assign]
        placement.asked.clear()
        answer = await send_turn(cluster.a.client, session, "moved " * 100_000)
        assert answer["stopReason"] == "end_turn"
        assert placement.asked == ["a", "b", "a", "c"]
        assert await outcomes(cluster) == {"answered": 2, "moved": 1}


async def test_a_session_that_has_come_to_this_node_is_served_by_it(cluster: Cluster) -> None:
    session = (await create_session(cluster.a.client, "echo"))["sessionId"]
    cluster.placement.creator = "a"
    here = (await create_session(cluster.a.client, "echo"))["sessionId"]
    checked = cluster.placement.check

    def check(node: str, log_id: str | None) -> None:
        if node == "b":
            cluster.placement.sessions[session if log_id is None else log_id] = "a"
        checked(node, log_id)

    cluster.placement.sessions[here] = "b"
    cluster.placement.check = check  # type: ignore[method-assign]
    assert (await send_turn(cluster.a.client, here, "back"))["stopReason"] == "end_turn"


async def test_a_session_that_moves_all_the_time_is_a_503(cluster: Cluster) -> None:
    cluster.placement.sessions["sess_x"] = "b"
    checked = cluster.placement.check

    def check(node: str, log_id: str | None) -> None:
        cluster.placement.sessions["sess_x"] = "a" if node == "b" else "b"
        checked(node, log_id)

    cluster.placement.check = check  # type: ignore[method-assign]
    answer = await cluster.a.client.post("/session/sess_x", json={"messages": [user_message()]})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert await outcomes(cluster) == {"moved": 3}


async def test_a_forwarded_request_for_a_session_elsewhere_is_a_421_without_an_address(cluster: Cluster) -> None:
    cluster.placement.sessions["sess_x"] = "a"
    body = json.dumps({"messages": [user_message()]}).encode()
    cluster.b.client.headers.pop("Authorization")
    answer = await cluster.b.client.post("/session/sess_x", content=body, headers=signed("/session/sess_x", body))
    assert answer.status_code == 421 and answer.json() == {"error": "another node has it by now: a"}


async def test_the_name_in_the_address_of_a_node_is_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTICO_ENCRYPTION_KEY", ENCRYPTION_KEY)
    node = {"address": "http://node-7.internal:7700"}
    config = parse(gateway_config(tmp_path, store={"url": "postgresql://127.0.0.1:1/none"}, node=node))
    gateway = Gateway(config, (KEY,), Redactor())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(gateway)), base_url="http://node-7.internal:7700"
    ) as client:
        assert (await client.get("/healthz")).status_code == 200
        await expect_error(client.get("/healthz", headers={"Host": "node-8.internal"}), 403)


async def test_a_node_without_the_http_client_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("gateway.cluster.forwarding.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    gateway = Gateway(parse(gateway_config(tmp_path)), (KEY,), Redactor())
    gateway.node_keys = NodeKeys("a", [NODE_KEY])
    with pytest.raises(ConfigError, match="needs aiohttp") as refused:
        create_app(gateway)
    assert str(refused.value).endswith(f"Run: {command_for_extra('nodes')}")
