"""The tasks of one node of a cluster: the node that runs a task has its lease."""

from __future__ import annotations

from gateway.agents.configured_agents import Agents
from gateway.cluster.node import Node
from gateway.events.turn_reader import Turn
from gateway.runs.admission_and_eviction import AdmissionControl
from gateway.runs.idempotency import Idempotency
from gateway.runs.one_shot_tasks import TaskRunner
from gateway.runs.shared_services import SharedServices
from gateway.store import KeyRecord, RunRecord, Store
from gateway.store.fencing import Lease


class ClusterTasks(TaskRunner):
    """The tasks of `node`."""

    def __init__(
        self, agents: Agents, shared: SharedServices, admission: AdmissionControl, idempotency: Idempotency, node: Node
    ) -> None:
        super().__init__(agents, shared, admission, idempotency)
        self._node = node

    async def _place(self, agent: str) -> None:
        await self._node.directory.place(agent, None)

    async def _ended(self, task_id: str, store: Store) -> Turn:
        """As TaskRunner._ended. Raises SessionElsewhere if it runs on another node."""
        lease = await self._node.leases.hold(task_id)
        try:
            return await super()._ended(task_id, store.fenced(lease))
        finally:
            await lease.release()

    async def _store_start(self, record: RunRecord, key: KeyRecord | None) -> Lease | None:
        leases = self._node.leases
        async with leases.creating(record.log_id) as store:
            await store.runs.start(record, key=key)
        lease = leases.get(record.log_id)
        if lease is not None:
            lease.in_use = True
        return lease
