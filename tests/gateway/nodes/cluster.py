"""Gateways in this process that forward requests to each other. Where a session is, a test decides (`Placement`).

Each gateway has a store of its own: what another one has is not found in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.cluster.node_keys import NodeKeys
from gateway.config import parse
from gateway.errors import SessionElsewhere
from gateway.security.authentication import request_is_forwarded
from gateway.security.redaction import Redactor
from gateway.store.sqlite import sqlite_url
from tests.support.daemon import RunningGateway, gateway_config, serve_gateway
from tests.support.store_template import create_database

NODE_KEY = "node-key-for-tests-0123456789abcdef"
ELSEWHERE = "http://127.0.0.1:9"
"""An address where nothing listens."""


@dataclass
class Placement:
    """The nodes of a cluster by their ids, and which of them has a session. What is created is created at `creator`."""

    addresses: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    creator: str | None = None
    asked: list[str] = field(default_factory=list)
    """The nodes that have looked for the node of a session or a task, in order."""

    def check(self, node: str, log_id: str | None) -> None:
        """Raise SessionElsewhere unless the node is the one."""
        self.asked.append(node)
        found = self.creator if log_id is None else self.sessions.get(log_id)
        if log_id is None and request_is_forwarded.get():
            return
        if found not in (None, node):
            raise SessionElsewhere(found, self.addresses[found], log_id)


def place(gateway: Gateway, node: str, placement: Placement) -> None:
    """Have the sessions and tasks of an open gateway where the placement says."""
    sessions, tasks = gateway.sessions, gateway.tasks
    get, create, start = sessions.get, sessions.create, tasks._start

    async def placed_get(caller: Any, session_id: str, **reading: Any) -> Any:
        # Also for reading: the stores are not the same.
        placement.check(node, session_id)
        return await get(caller, session_id, **reading)

    async def placed_create(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("here"):
            placement.check(node, None)
        session = await create(*args, **kwargs)
        placement.sessions.setdefault(session.id, node)
        return session

    async def placed_start(*args: Any, **kwargs: Any) -> Any:
        placement.check(node, None)
        return await start(*args, **kwargs)

    sessions.get, sessions.create, tasks._start = placed_get, placed_create, placed_start  # type: ignore[method-assign]


@dataclass
class Cluster:
    """Running nodes by their ids."""

    nodes: dict[str, RunningGateway]
    placement: Placement

    @property
    def a(self) -> RunningGateway:
        return self.nodes["a"]

    @property
    def c(self) -> RunningGateway:
        return self.nodes["c"]

    @property
    def b(self) -> RunningGateway:
        return self.nodes["b"]


@asynccontextmanager
async def run_cluster(
    folder: Path, *nodes: str, keys: Sequence[str] = (NODE_KEY,), shared: Sequence[str] = (), **tables: Any
) -> AsyncIterator[Cluster]:
    """Run nodes with these ids; the agents of all have the scenarios of `folder`. Those that are `shared` have one store."""
    placement = Placement()
    async with AsyncExitStack() as stack:
        running: dict[str, RunningGateway] = {}
        for node in nodes:
            config = gateway_config(folder, **{name: dict(table) for name, table in tables.items()})
            config["server"]["data_dir"] = str(folder / node)
            if node in shared:
                await create_database(folder / "shared")
                config["store"] = {"url": sqlite_url(folder / "shared")}
            settings = parse(config)
            gateway = Gateway(settings, settings.auth.keys, Redactor())
            gateway.node_keys = NodeKeys(node, keys)
            running[node] = await stack.enter_async_context(serve_gateway(gateway))
            placement.addresses[node] = running[node].url
            place(gateway, node, placement)
        yield Cluster(running, placement)
