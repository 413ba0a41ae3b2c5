"""Tasks of /v1/execute in a cluster: a request under a key runs once, whichever nodes get it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from drivers.contract.events import SessionEnd
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.one_shot_tasks import Task
from tests.gateway.nodes.three_nodes import rest, run_nodes

KEY = IdempotencyKey.of(None, "execute", "once", [])


async def test_a_task_that_is_over_is_read_from_the_store_by_any_node(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        events = await rest(await a.gateway.tasks.execute(Task("echo", "hello"), KEY))
        await asyncio.gather(*a.gateway.tasks._winding_up)
        assert a.node.leases.all == []
        again = await rest(await b.gateway.tasks.execute(Task("echo", "hello"), KEY))
        assert again == events and isinstance(again[-1], SessionEnd)
        assert b.node.leases.all == []
