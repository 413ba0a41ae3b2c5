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
    stacks: dict[str, AsyncExitStack] = field(default_factory=dict)
    """What ends each of the nodes."""
    _least_loaded: str = ""

    @property
    def least_loaded(self) -> str:
        """The node that gets what is new. Until a test has set it, that is the one with the least load."""
        return self._least_loaded

    @least_loaded.setter
    def least_loaded(self, name: str) -> None:
        self._least_loaded = name
        for other in self.nodes:
            self.node(other).directory._load = self._load  # type: ignore[method-assign]

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

    async def stop(self, name: str) -> None:
        """Shut a node down."""
        await self.stacks[name].aclose()
        del self.nodes[name]

    def _load(self, report: NodeReport) -> tuple[float, bool, str]:
        return float(report.id != self.node(self.least_loaded).id), False, report.id


@asynccontextmanager
async def run_agents_by_node(
    folder: Path,
    agents: Mapping[str, Mapping[str, Any]],
    clock: Clock = SYSTEM_CLOCK,
    addresses: Mapping[str, str] | None = None,
    **tables: Any,
) -> AsyncIterator[AgentsByNode]:
    """Run nodes with the agents of each. Others connect to a node at its address in `addresses`, if there is one."""
    running = AgentsByNode()
    async with AsyncExitStack() as stack:
        for name, own in agents.items():
            listener = bound_socket()
            node = {"address": (addresses or {}).get(name, address_of(listener))}
            settings = parse(node_config(folder, name, node=node, agents=dict(own), **tables))
            gateway = Gateway(settings, settings.auth.keys, Redactor(), clock=clock)
            running.stacks[name] = await stack.enter_async_context(AsyncExitStack())
            running.nodes[name] = await running.stacks[name].enter_async_context(serve_gateway(gateway, listener))
        await running.beat()
        yield running
