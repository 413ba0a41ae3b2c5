"""`/v1/nodes`: the nodes of the cluster, and draining one. For administrators. The gateway's own API."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from gateway.app import Gateway
from gateway.cluster.configuration_digests import differences
from gateway.errors import NotFound
from gateway.protocols.aap.schema import iso_time
from gateway.protocols.authenticated_routes import authenticated_router
from gateway.protocols.operations.administrators import CurrentAdministrator
from gateway.protocols.operations.api_model import ApiModel
from gateway.protocols.route_metadata import errors
from gateway.worktrees.worktrees import node_in

EXAMPLE: JsonDict = {
    "id": "4be5e2a1f0c94d6f8f4c1c9e2a7b4d5e",
    "address": "http://10.0.0.5:7700",
    "own": True,
    "state": "ready",
    "agents": ["claude", "codex"],
    "labels": ["gpu"],
    "folders": ["/srv/projects"],
    "version": "0.1.0",
    "liveAgents": 3,
    "runningTurns": 1,
    "agentSlots": 16,
    "sessions": 4,
    "worktrees": 2,
    "differs": [],
    "startedAt": "2026-11-23T09:30:00.000Z",
    "heartbeatAt": "2026-11-23T10:12:41.512Z",
    "heartbeatAge": 1.4,
}


class NodeInfo(ApiModel):
    """A node. `own`: it has answered this request. Its load is that of its last heartbeat.

    `silent` is a node without a heartbeat for 10 seconds. `sessions` are those that only this node may change at the moment, with
    the tasks at work; `worktrees` are on its machine, and no other node goes on with their sessions. `differs` is what of its
    configuration is not as on the node that answers, such as `policy`.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    id: str
    address: str
    own: bool
    state: Literal["ready", "draining", "silent"]
    agents: list[str]
    labels: list[str]
    folders: list[str]
    version: str
    live_agents: int
    running_turns: int
    agent_slots: int
    sessions: int
    worktrees: int
    differs: list[str]
    started_at: str
    heartbeat_at: str
    heartbeat_age: float = Field(description="Seconds by the database's clock.")


class NodesResponse(ApiModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"nodes": [EXAMPLE]}]})

    nodes: list[NodeInfo]


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    routes = authenticated_router(gateway, "operations")

    @routes.get("/v1/nodes")
    async def list_nodes(_: CurrentAdministrator) -> NodesResponse:
        """The nodes of the cluster, in the order of their ids. A daemon that is no node has none."""
        return NodesResponse(nodes=await _nodes(gateway))

    @routes.post("/v1/nodes/{id}/drain", responses=errors(404))
    async def drain(_: CurrentAdministrator, id: str) -> NodeInfo:
        """Have a node take no new work: its idle sessions are free for the others, runs at work go on to their end.

        It is ready again after a restart.
        """
        node = gateway.node
        if node is None or not await gateway.store.nodes.drain(id):
            raise NotFound(f"there is no node {id!r}; GET /v1/nodes lists those that exist")
        if id == node.id:
            # The others notice it at their next heartbeat.
            await node.beat()
            await node.daemon.tidy()
        for found in await _nodes(gateway):
            if found.id == id:
                return found
        raise NotFound(f"the node {id!r} has just ended")

    return routes


async def _nodes(gateway: Gateway) -> list[NodeInfo]:
    if gateway.node is None or gateway.cluster is None:
        return []
    own = gateway.cluster.digests
    held = await gateway.store.leases.count_by_node()
    worktrees = Counter(node_in(record.path) for record in await gateway.worktrees.all())
    silent = gateway.node.intervals.silent
    return [
        NodeInfo(
            id=record.report.id,
            address=record.report.address,
            own=record.report.id == gateway.node.id,
            state="silent" if record.silent_for > silent else record.state,
            agents=list(record.report.agents),
            labels=list(record.report.labels),
            folders=list(record.report.folders),
            version=record.report.version,
            live_agents=record.report.live_agents,
            running_turns=record.report.running_turns,
            agent_slots=record.report.agent_slots,
            sessions=held.get(record.report.id, 0),
            worktrees=worktrees[record.report.id],
            differs=differences(own, record.report.digests),
            started_at=iso_time(record.started_at),
            heartbeat_at=iso_time(record.heartbeat_at),
            heartbeat_age=round(max(record.silent_for, 0.0), 1),
        )
        for record in await gateway.store.nodes.all()
    ]
