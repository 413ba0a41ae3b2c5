"""A client that is connected to a node which loses its session gets the end that another node has stored, over each protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.config import parse
from gateway.nodes.node import Intervals
from gateway.runs.recovery import WHY
from gateway.security.redaction import Redactor
from tests.daemon import KEY, RunningGateway, serve_gateway
from tests.gateway.nodes.three_nodes import NEVER, own_clock
from tests.gateway.nodes.two_nodes import node_config
from tests.gateway.protocols.acp.transports import on_websocket
from tests.gateway.requests import session_body
from tests.gateway.store.expiry import silence
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

WriteScenario = Callable[..., str]
INTERVALS = Intervals(heartbeat=NEVER, retry=NEVER, takeover=NEVER, poll=0.2)


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
    """Add the lines of a streamed response as they come."""
    async with client.stream(method, path, json=body) as answer:
        assert answer.status_code < 300
        async for line in answer.aiter_lines():
            lines.append(line)


async def test_readers_of_a_lost_session_get_the_end_that_is_stored(nodes: list[RunningGateway], tmp_path: Path) -> None:
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
        assert first.gateway.node is not None and isinstance(first.gateway.node.leases.clock, ManualClock)
        async with asyncio.timeout(60):
            # The first node looks again and again for what the second one has stored.
            await first.gateway.node.leases.clock.outlast(asyncio.gather(*works), INTERVALS.poll)
            with pytest.raises(Exception, match=WHY):
                await prompting
        assert WHY in "".join(aap) and any("turn_stop" in line for line in aap)
        assert WHY in "".join(task) and any('"session_end"' in line for line in task)
        for text in ("".join(aap), "".join(task), client.text(session)):
            assert "too late" not in text
