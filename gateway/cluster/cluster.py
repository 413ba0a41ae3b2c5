"""Cluster: the parts that only the gateway of a node has. The gateway opens and closes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drivers.runtime.clock import Clock
from gateway import __version__
from gateway.agents.agent_descriptions import AgentDescription, describe, from_json, to_json
from gateway.cluster.node import UNUSED, Intervals, Node
from gateway.cluster.node_keys import NodeKeys, node_keys
from gateway.cluster.sessions import ClusterSessions
from gateway.cluster.shared_agents import SharedAgents
from gateway.cluster.shared_state import SharedState
from gateway.cluster.tasks import ClusterTasks
from gateway.errors import ConfigError, StoreUnavailable
from gateway.runs.admission_and_eviction import AdmissionControl
from gateway.runs.cancellation import all_ended
from gateway.runs.idempotency import Idempotency
from gateway.runs.shared_services import SharedServices
from gateway.security.encryption import SecretEncryption
from gateway.store import Store
from gateway.store.node_ids import NodeRuns
from gateway.store.nodes import NodeReport

if TYPE_CHECKING:
    from gateway.app import Gateway


class Cluster:
    """The part of one node. Await `open_store`, then `open`.

    `keys` are the default keys of the gateway. `intervals` and `clock` are for the node.
    """

    node: Node
    sessions: ClusterSessions | None = None
    """None until the gateway is open."""

    def __init__(self, gateway: Gateway, keys: Sequence[str], intervals: Intervals | None, clock: Clock) -> None:
        self._gateway, self._intervals, self._clock = gateway, intervals or Intervals(), clock
        shared = SharedState(gateway.settings, keys, gateway.clock)
        self._shared, self.turns, self.digests = shared, shared.turns, shared.digests
        self._agents: SharedAgents | None = None

    async def open_store(self, url: str, instance: str, instance_file: Path) -> Store:
        """Open the store as the node `instance`. Raises ConfigError if another daemon runs as this node."""
        try:
            return await Store.open_as_node(url, instance, self._intervals.silent, self._gateway.store_times)
        except NodeRuns as error:
            raise ConfigError(
                f"{error}. Each node needs a data directory of its own: if {instance_file.parent} is a copy of that of another "
                f"node, remove {instance_file}; else stop that daemon first"
            ) from None

    async def open(self, store: Store, instance: str, encryption: SecretEncryption) -> Node:
        """Begin to use what the nodes share. Return the node, which is not started.

        Raises ConfigError if this node encrypts secrets with another key than the others.
        """
        keys = node_keys(self._gateway.settings.node)
        self._gateway.redactor.register(keys)
        self.keys = NodeKeys(instance, keys)
        await self._shared.open(store, instance, encryption)
        self.node = Node(store, _NodeDaemon(self._gateway, self, instance), self._intervals, self._clock)
        self.node.directory.on_lost = self._gateway.node_lost
        self._agents = SharedAgents(store.shared.values, self.node.directory)
        return self.node

    def serve(
        self, shared: SharedServices, admission: AdmissionControl, idempotency: Idempotency
    ) -> tuple[ClusterSessions, ClusterTasks]:
        """Return the sessions and the tasks of the node."""
        agents, sleep_after = self._gateway.agents, self._gateway.settings.limits.sleep_after
        self.sessions = ClusterSessions(agents, shared, admission, sleep_after, self.node)
        return self.sessions, ClusterTasks(agents, shared, admission, idempotency, self.node)

    async def offered_elsewhere(self, names: Collection[str]) -> list[AgentDescription]:
        """Return the agents of other nodes whose names are not among `names`; none if the store does not answer."""
        found: dict[str, AgentDescription] = {}
        with suppress(StoreUnavailable):
            for text in await self._agents.elsewhere() if self._agents is not None else ():
                found |= {one.name: one for one in from_json(text) if one.name not in names and one.name not in found}
        return list(found.values())

    async def publish_agents(self) -> None:
        """Store the descriptions of this node's agents, which other nodes list for their clients."""
        if self._agents is not None:
            discovery = self._gateway.discovery
            await discovery.find_programs()
            found = [discovery.current(agent) for agent in self._gateway.agents if agent.usable]
            await self._agents.publish(to_json([describe(one) for one in found if one.problem is None]))

    async def close(self, in_time: Callable[[Awaitable[None]], Awaitable[None]]) -> None:
        """Leave the cluster when all runs have ended. `in_time` awaits a close with a limit of time. Raises nothing."""
        if self._agents is not None:
            await all_ended([in_time(self.node.stop())])
            if not self._gateway.store.abandoned:
                await all_ended([in_time(self._agents.remove())])
        await all_ended([in_time(self._shared.close())])


class _NodeDaemon:
    """This daemon, for the node of a cluster that it is (gateway.cluster.node.NodeDaemon)."""

    def __init__(self, gateway: Gateway, cluster: Cluster, instance: str) -> None:
        self._gateway, self._cluster, self._instance = gateway, cluster, instance
        self.end_for_good = gateway.end_for_good

    async def close_runs(self, store: Store, log_id: str) -> int:
        closed = await self._gateway.close_runs(store, log_id)
        # Before the gateway is open nobody follows its sessions.
        if closed and self._cluster.sessions is not None:
            await self._cluster.sessions.announce_stored(log_id)
        return closed

    def report(self) -> NodeReport:
        gateway, chosen = self._gateway, self._gateway.settings.node
        live, running = gateway.load
        return NodeReport(
            id=self._instance,
            address=chosen.address,
            agents=tuple(agent.name for agent in gateway.agents if agent.usable),
            labels=chosen.labels,
            folders=tuple(map(str, chosen.folders)),
            version=__version__,
            live_agents=live,
            running_turns=running,
            agent_slots=gateway.settings.limits.live_agents,
            digests=self._cluster.digests,
        )

    async def tidy(self) -> None:
        if self._cluster.sessions is not None:
            await self._cluster.sessions.release_unused(UNUSED)
            await self._cluster.sessions.begin_queued()
        await self._cluster.publish_agents()

    async def sweep(self) -> None:
        if self._cluster.sessions is not None:
            await self._cluster.sessions.remove_left()
