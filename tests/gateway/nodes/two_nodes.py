"""Two nodes of a cluster in this process, over one database of PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.app import Gateway
from gateway.config import parse
from gateway.security.redaction import Redactor
from tests.support import stores
from tests.support.daemon import RunningGateway, address_of, bound_socket, gateway_config, serve_gateway

ENCRYPTION_KEY = "c3ludGhldGljLWtleS1mb3ItdGVzdHMtb25seS0wMTI="
NODE_KEY = "node-key-of-tests-0123456789abcdef0123456789"


def node_config(folder: Path, name: str, **tables: Any) -> dict[str, Any]:
    """Return the configuration of a node, whose store is that of all nodes of the folder."""
    encryption, keys = folder / "encryption-key", folder / "node-keys"
    encryption.write_text(f"{ENCRYPTION_KEY}\n")
    keys.write_text(f"{NODE_KEY}\n")
    with stores.use("postgresql"):
        store = {"url": stores.store_url(folder / "cluster"), **tables.pop("store", {})}
    node = {"address": "http://127.0.0.1:1", "encryption_key_file": str(encryption), "key_file": str(keys)}
    return gateway_config(folder / name, node={**node, **tables.pop("node", {})}, store=store, **tables)


@asynccontextmanager
async def run_node(folder: Path, name: str, clock: Clock = SYSTEM_CLOCK, **tables: Any) -> AsyncIterator[RunningGateway]:
    """Run a node that other nodes reach at its address. All nodes of a folder have one store and the same keys."""
    listener = bound_socket()
    settings = parse(node_config(folder, name, node={"address": address_of(listener)}, **tables))
    async with serve_gateway(Gateway(settings, settings.auth.keys, Redactor(), clock=clock), listener) as running:
        yield running


@asynccontextmanager
async def two_nodes(folder: Path, **tables: Any) -> AsyncIterator[tuple[RunningGateway, RunningGateway]]:
    """Run two nodes that have nothing in common but their store and their keys. They know each other."""
    async with run_node(folder, "one", **dict(tables)) as one, run_node(folder, "two", **dict(tables)) as two:
        assert one.gateway.node is not None
        await one.gateway.node.beat()
        yield one, two
