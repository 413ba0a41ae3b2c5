"""The agents of all nodes of a cluster: each node stores a description of its own, which the others read."""

from __future__ import annotations

from gateway.cluster.node_directory import NodeDirectory
from gateway.store.shared_values import SharedValueRepository

_NAME = "agents:"
"""The name of the shared value of a node begins with it, and ends with the id of the node."""


class SharedAgents:
    """The descriptions are texts. Those of nodes that take no new work are omitted."""

    def __init__(self, values: SharedValueRepository, directory: NodeDirectory) -> None:
        self._values, self._directory = values, directory
        self._stored: str | None = None

    async def publish(self, description: str) -> None:
        """Store the description of this node's agents, unless it is stored already."""
        if description == self._stored:
            return
        if self._stored is None:
            await self._values.remove_of_missing_nodes(_NAME)
        await self._values.set(_NAME + self._directory.node, description)
        self._stored = description

    async def elsewhere(self) -> list[str]:
        """The descriptions of the other nodes' agents, in the order of the nodes' ids."""
        others = self._directory.others
        if not others:
            return []
        found = await self._values.some([_NAME + node for node in others])
        return [found[name] for name in sorted(found)]

    async def remove(self) -> None:
        """This node stops."""
        await self._values.remove(_NAME + self._directory.node)
