"""Two nodes and a proxy instead of one gateway, for the tests that speak with a gateway over HTTP only.

PORTICO_TEST_CLUSTER=near runs each test so that does not choose: requests go to the nodes in turn, and what is new is begun where
the request arrives. With `away` it is begun at the other node, so that a connection of ACP is forwarded.

`RunningGateway.gateway` is a `ClusterGateway` then. Of a gateway's inside it has what several nodes have too; a test that looks
for anything else is skipped, with the name of it as the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

import pytest

from drivers.contract.driver_info import Probe
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.app import Gateway
from gateway.cluster.node_directory import NodeDirectory
from gateway.errors import SessionElsewhere
from gateway.security.authentication import ADMINISTRATOR, Caller
from gateway.sessions.session import Session
from tests.support import stores

ENCRYPTION_KEY = "c3ludGhldGljLWtleS1mb3ItdGVzdHMtb25seS0wMTI="
NODE_KEY = "node-key-of-tests-0123456789abcdef0123456789"

Placement = Literal["near", "away"]
PLACEMENTS: tuple[Placement, ...] = ("near", "away")

SAME_AT_ALL_NODES = ("efforts", "fast_models", "info", "models", "modes", "options", "settable_options")
"""What an agent has by its driver, its settings and its probe."""

_placement: Placement | None = next((found for found in PLACEMENTS if found == os.environ.get("PORTICO_TEST_CLUSTER")), None)


@contextmanager
def use(placement: Placement | None) -> Iterator[None]:
    """Run gateways as nodes inside, or with None as they are without PORTICO_TEST_CLUSTER."""
    global _placement
    before, _placement = _placement, placement or _placement
    try:
        with stores.use("postgresql" if _placement else stores.kind()):
            yield
    finally:
        _placement = before


def placement() -> Placement | None:
    """Return where what is new begins; None if gateways are no nodes."""
    return _placement


def has_nodes(parameters: Mapping[str, Any]) -> bool:
    """Whether a test with these parameters of fixtures runs nodes, if PORTICO_TEST_CLUSTER is set; True if it is not."""
    return _placement is None or (
        parameters.get("also_in_a_cluster", _placement) == _placement
        and parameters.get("each_store", "postgresql") == "postgresql"
    )


def place(gateway: Gateway) -> None:
    """Have an open node begin what is new at another one, if `placement()` says so."""
    if _placement == "away":
        assert gateway.node is not None
        directory: NodeDirectory = gateway.node.directory
        directory._load = lambda report: (0.0, report.id == directory.node, report.id)  # type: ignore[method-assign]


def leave_out(why: str) -> NoReturn:
    """Skip the test, which cannot be run with two nodes."""
    pytest.skip(f"cluster: {why}")


async def stored(gateway: Gateway | ClusterGateway, session_id: str) -> None:
    """Wait until all nodes can show what the node of a session has told its clients. One gateway shows that at once."""
    if isinstance(gateway, ClusterGateway):
        session = await gateway.sessions.get(ADMINISTRATOR, session_id)
        await session.log.require_written()


class ClusterSessions:
    """The sessions of all nodes."""

    def __init__(self, nodes: Sequence[Gateway]) -> None:
        self._nodes = nodes

    async def get(self, caller: Caller, session_id: str) -> Session:
        """The session, at the node that has it."""
        for node in (*self._nodes, *self._nodes):
            try:
                return await node.sessions.get(caller, session_id)
            except SessionElsewhere:
                continue
        raise AssertionError(f"no node has {session_id}")

    @property
    def held(self) -> list[Session]:
        """The sessions that the nodes have in memory."""
        return [session for node in self._nodes for session in node.sessions.held]

    @property
    def _known(self) -> dict[str, Session]:
        """The sessions in memory by their ids, each at the node that has it."""
        found = [session for node in self._nodes for session in node.sessions._known.values()]
        return {session.id: session for session in found if session.lease is not None and session.lease.held}

    def __getattr__(self, name: str) -> NoReturn:
        leave_out(f"uses sessions.{name} of a gateway")


class ClusterAgent:
    """An agent of all nodes, which have one driver and one object with its settings."""

    def __init__(self, agents: Sequence[ConfiguredAgent]) -> None:
        agent = agents[0]
        self._agents = agents
        self.working_directory, self.settings, self.driver = agent.working_directory, agent.settings, agent.driver

    def apply_probe(self, probe: Probe) -> None:
        """Apply at each node what a probe of the agent's program has found."""
        for agent in self._agents:
            agent.apply_probe(probe)

    def __getattr__(self, name: str) -> Any:
        if name in SAME_AT_ALL_NODES:
            return getattr(self._agents[0], name)
        leave_out(f"uses `{name}` of an agent")


class ClusterAgents:
    """The agents of all nodes."""

    def __init__(self, nodes: Sequence[Gateway]) -> None:
        self._nodes = nodes

    def get(self, name: str) -> ClusterAgent:
        """The agent of that name."""
        first, *others = [node.agents.get(name) for node in self._nodes]
        for other in others:
            other.settings, other.driver = first.settings, first.driver
        return ClusterAgent([first, *others])

    def __getattr__(self, name: str) -> NoReturn:
        leave_out(f"uses agents.{name} of a gateway")


class ClusterSettings:
    """The settings of the nodes, whose data directories have the folders of agents in common."""

    def __init__(self, nodes: Sequence[Gateway]) -> None:
        self.data_dir = nodes[0].settings.data_dir

    def __getattr__(self, name: str) -> NoReturn:
        leave_out(f"uses settings.{name} of a gateway")


class ClusterGateway:
    """What tests use of a gateway, for two nodes. Everything else skips the test.

    The store is that of one of them, and `url` that of the proxy.
    """

    def __init__(self, nodes: Sequence[Gateway], url: str) -> None:
        self.nodes, self.url = nodes, url
        self.sessions = ClusterSessions(nodes)
        self.store, self.agents, self.settings = nodes[0].store, ClusterAgents(nodes), ClusterSettings(nodes)

    async def stop_runs(self) -> None:
        """End the runs of all nodes."""
        for node in self.nodes:
            await node.stop_runs()

    def __getattr__(self, name: str) -> NoReturn:
        leave_out(f"uses `{name}` of a gateway")


def nodes_of(gateway: Gateway | ClusterGateway) -> Sequence[Gateway]:
    """The gateways of a `RunningGateway`: one, or those of all nodes."""
    return gateway.nodes if isinstance(gateway, ClusterGateway) else [gateway]
