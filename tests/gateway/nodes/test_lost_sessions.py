"""A client of a node that loses its session is disconnected, and gets the stored end where it connects again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.cluster.node import Intervals
from gateway.config import parse
from gateway.runs.recovery import WHY
from gateway.security.redaction import Redactor
from tests.gateway.nodes.three_nodes import NEVER, own_clock
from tests.gateway.nodes.two_nodes import node_config
from tests.gateway.store.expiry import silence
from tests.support.acp_client import on_websocket
from tests.support.daemon import KEY, RunningGateway, serve_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import session_body
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
INTERVALS = Intervals(heartbeat=NEVER, retry=NEVER, takeover=NEVER)


@pytest.fixture
async def nodes(tmp_path: Path, write_scenario: WriteScenario) -> AsyncIterator[list[RunningGateway]]:
    """Two nodes for which time passes only where a test says so. The first one gets all new sessions."""
    steps = [{"text": "working"}, {"wait_for_file": "go"}, {"text": "too late"}]
    write_scenario(steps, name="steps.json")
    agents = {"script": {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": "steps.json"}}}
    async with AsyncExitStack() as stack:
        running = []
        for name in ("one", "two"):
            settings = parse(node_config(tmp_path, name, agents=agents))
            gateway = Gateway(settings, settings.auth.keys, Redactor(), intervals=INTERVALS, node_clock=own_clock())
            running.append(await stack.enter_async_context(serve_gateway(gateway)))
        first, second = (one.gateway for one in running)
        assert first.node is not None and second.node is not None
        await first.store.nodes.drain(second.node.id)
        await second.node.beat()
        await first.node.beat()
        yield running


async def lose(nodes: list[RunningGateway], logs: int) -> None:
    """Stop the first node for so long that the second one takes its sessions over, and let it go on."""
    first, second = (one.gateway.node for one in nodes)
    assert first is not None and second is not None
    await silence(nodes[1].gateway.store, first.id)
    clock = second.leases.clock
    assert isinstance(clock, ManualClock) and isinstance(first.leases.clock, ManualClock)
    taken = 0
    for _ in range(3):
        taken += await second.takeover.look()
        clock.now += 2.0
    assert taken == logs
    first.leases.clock.now += 15.0


async def stream(client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any], lines: list[str]) -> None:
    """Add the lines of a streamed response as they come, until it is broken off."""
    async with client.stream(method, path, json=body) as answer:
        assert answer.status_code < 300
        with pytest.raises(httpx.RemoteProtocolError):
            async for line in answer.aiter_lines():
                lines.append(line)


async def test_readers_of_a_lost_session_are_disconnected_and_find_its_end_elsewhere(
    nodes: list[RunningGateway], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = nodes[0]
    aap, task = list[str](), list[str]()
    async with on_websocket(first.url, "script", KEY) as client:
        await client.initialize()
        session = await client.new()
        works = [
            asyncio.create_task(stream(first.client, "PUT", "/session", session_body(stream="delta"), aap)),
            asyncio.create_task(stream(first.client, "POST", "/v1/execute", {"driver": "script", "task": "go"}, task)),
        ]
        prompting = asyncio.create_task(client.prompt(session))
        await wait_until(lambda: all("working" in text for text in ("".join(aap), "".join(task), client.text(session))))
        for log in [*(one.log for one in first.gateway.sessions.held), *(run.log for run in first.gateway.tasks.running)]:
            await log.written()
        await lose(nodes, 3)
        (tmp_path / "scenes" / "go").touch()
        async with asyncio.timeout(60):
            await asyncio.gather(*works)
            with pytest.raises(Exception, match="lost its lease"):
                await prompting
        for text in ("".join(aap), "".join(task), client.text(session)):
            assert "too late" not in text and WHY not in text
        [other] = set(re.findall("sess_[0-9a-f]{32}", "".join(aap)))
        for one in (other, session):
            found = (await nodes[1].client.get(f"/aap/v3/sessions/{one}")).json()
            assert WHY in found["x-portico"]["error"] and found["x-portico"]["state"] == "idle"
        with pytest.raises(Exception, match="not open on this connection"):
            await client.prompt(session)
    assert "a stream is broken off" in caplog.text and "without completing response" not in caplog.text
