"""Nodes with different agents in this process, which forward requests to each other. Which one is least loaded, a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.app import Gateway
from gateway.cluster.node import Node
from gateway.config import parse
from gateway.security.redaction import Redactor
from gateway.store.nodes import NodeReport
from tests.gateway.nodes.two_nodes import node_config
from tests.support.daemon import RunningGateway, address_of, bound_socket, serve_gateway


@dataclass
class AgentsByNode:
    """Running nodes by their names. Each has the agent `echo` besides its own."""

    nodes: dict[str, RunningGateway] = field(default_factory=dict)
    least_loaded: str = ""

    def node(self, name: str) -> Node:
        found = self.nodes[name].gateway.node
        assert found is not None
        return found

    async def place_of(self, session: str) -> str | None:
        """The name of the node that has a session; None if none has."""
        lease = await next(iter(self.nodes.values())).gateway.store.leases.get(session)
        names = {self.node(name).id: name for name in self.nodes}
        return names[lease.node] if lease is not None and not lease.released else None

    async def release(self, name: str) -> None:
        """Have a node end its agents and release all of its sessions, as after a pause."""
        for session in self.nodes[name].gateway.sessions.held:
            async with session.lock:
                await session.sleep(session.state)
        await self.nodes[name].gateway.sessions.release_unused(0.0)

    async def beat(self) -> None:
        """Let the nodes learn of each other."""
        for name in self.nodes:
            await self.node(name).beat()

    def _load(self, report: NodeReport) -> tuple[float, bool, str]:
        return float(not self.least_loaded or report.id != self.node(self.least_loaded).id), False, report.id


@asynccontextmanager
async def run_agents_by_node(
    folder: Path, agents: Mapping[str, Mapping[str, Any]], clock: Clock = SYSTEM_CLOCK, **tables: Any
) -> AsyncIterator[AgentsByNode]:
    """Run nodes with the agents of each."""
    running = AgentsByNode()
    async with AsyncExitStack() as stack:
        for name, own in agents.items():
            listener = bound_socket()
            settings = parse(node_config(folder, name, node={"address": address_of(listener)}, agents=dict(own), **tables))
            gateway = Gateway(settings, settings.auth.keys, Redactor(), clock=clock)
            running.nodes[name] = await stack.enter_async_context(serve_gateway(gateway, listener))
            running.node(name).directory._load = running._load  # type: ignore[method-assign]
        await running.beat()
        yield running
