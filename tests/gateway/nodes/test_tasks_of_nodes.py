"""Tasks of /v1/execute in a cluster: a request under a key runs once, whichever nodes get it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from drivers.contract.events import SessionEnd
from gateway.errors import SessionElsewhere
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.one_shot_tasks import Task
from gateway.security.authentication import request_is_forwarded
from tests.gateway.nodes.three_nodes import ClusterNode, rest, run_nodes

KEY = IdempotencyKey.of(None, "execute", "once", [])


async def test_a_task_that_is_over_is_read_from_the_store_by_any_node(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        events = await rest(await a.gateway.tasks.execute(Task("echo", "hello"), KEY))
        await asyncio.gather(*a.gateway.tasks._winding_up)
        assert a.node.leases.all == []
        again = await rest(await b.gateway.tasks.execute(Task("echo", "hello"), KEY))
        assert again == events and isinstance(again[-1], SessionEnd)
        assert b.node.leases.all == []


async def test_requests_with_one_key_at_two_nodes_at_the_same_time_run_once(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as nodes:

        async def execute(node: ClusterNode) -> object:
            # Neither forwards it.
            request_is_forwarded.set(True)
            return await node.gateway.tasks.execute(Task("echo", "hello"), KEY)

        executions = [asyncio.create_task(execute(node)) for node in nodes for _ in range(3)]
        found = await asyncio.gather(*executions, return_exceptions=True)
        refused = [one for one in found if isinstance(one, BaseException)]
        assert all(isinstance(error, SessionElsewhere) for error in refused)
        assert len({error.node_id for error in refused if isinstance(error, SessionElsewhere)}) <= 1
        assert len(found) > len(refused)
