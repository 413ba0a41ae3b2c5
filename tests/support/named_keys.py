"""Named keys of a running gateway, which all nodes of a cluster share."""

from __future__ import annotations

from gateway.app import Gateway
from tests.support.cluster import ClusterGateway, nodes_of


async def add_key(gateway: Gateway | ClusterGateway, name: str) -> str:
    """Add a named key, and return it."""
    return await nodes_of(gateway)[0].credentials.add_key(name)


async def remove_key(gateway: Gateway | ClusterGateway, name: str) -> None:
    """Revoke a named key. All nodes refuse it when this returns."""
    await nodes_of(gateway)[0].credentials.remove_key(name)
    await compare_keys(gateway)


async def compare_keys(gateway: Gateway | ClusterGateway) -> None:
    """Wait until all nodes know of each change of keys and sign-ins."""
    for node in nodes_of(gateway):
        await node.credentials.compare()
