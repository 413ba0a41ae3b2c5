"""The cluster under test: real daemons with clocks that differ, and one server of PostgreSQL that watches who writes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.daemon import Daemon, closing, is_running
from tests.support.postgresql import PostgresqlServer

SKEWS = {"one": 60.0, "two": 0.0, "three": -60.0}
"""The nodes, and how many seconds the clock of each is ahead."""
ENCRYPTION_KEY = "c3ludGhldGljLWtleS1mb3ItdGVzdHMtb25seS0wMTI="
NODE_KEY = "node-key-of-tests-0123456789abcdef0123456789"
LIVE_AGENTS = 128
TAKEOVER_SECONDS = 60.0
WATCH = """
CREATE TABLE watched_nodes (name text PRIMARY KEY, id text);
CREATE TABLE wrong_writes (in_table text, log_id text, writer text, holder text);
CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE writer text; holder text; log text;
BEGIN
    log := to_jsonb(NEW) ->> TG_ARGV[0];
    SELECT id INTO writer FROM watched_nodes WHERE name = current_setting('application_name');
    SELECT node INTO holder FROM leases WHERE log_id = log;
    IF writer IS NULL OR holder IS NULL OR writer <> holder THEN
        INSERT INTO wrong_writes VALUES (TG_TABLE_NAME, log, current_setting('application_name'), holder);
    END IF;
    RETURN NULL;
END $$;
"""
"""Of each commit it records the writes of a node that did not have the lease then."""
WATCHED = {"events": "log_id", "runs": "log_id", "messages": "session_id"}


@dataclass
class Cluster:
    """Three nodes and their store. `work` is the folder of all their agents."""

    home: Path
    server: PostgresqlServer
    database: str
    nodes: dict[str, Daemon] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.home / "agents"

    @property
    def urls(self) -> list[str]:
        """The URLs of all nodes, dead ones included."""
        return [node.url for node in self.nodes.values()]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, self.database)

    async def start(self, name: str) -> None:
        """Start a node, or start it again. Raises RuntimeError."""
        await self.nodes[name].start()
        self.ids[name] = (self.nodes[name].data / "instance-id").read_text().strip()

    def leases(self, name: str) -> int:
        """How many leases a node has, expired ones included."""
        return int(self.query(f"SELECT count(*) FROM leases WHERE node = '{self.ids[name]}' AND expires_at > 0")[0][0])

    async def taken_over(self, name: str) -> float:
        """Wait until this node has no leases any more. Return the seconds. Raises RuntimeError."""
        began = time.monotonic()
        while await asyncio.to_thread(self.leases, name):
            if time.monotonic() - began > TAKEOVER_SECONDS:
                raise RuntimeError(f"the node {name} has {self.leases(name)} leases still")
            await asyncio.sleep(0.25)
        return time.monotonic() - began

    def end_left(self) -> list[str]:
        """Kill the agents that still run, and return what they were."""
        path = self.work / "processes.log"
        pids = [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []
        return [str(pid) for pid in pids if is_running(pid, self.home)]


@asynccontextmanager
async def run_cluster(home: Path) -> AsyncIterator[Cluster]:
    """Run three nodes over one PostgreSQL."""
    server = await asyncio.to_thread(PostgresqlServer)
    try:
        cluster = Cluster(home, server, await asyncio.to_thread(server.create_empty_database))
        cluster.work.mkdir()
        (cluster.work / "processes.log").touch()
        (home / "encryption-key").write_text(ENCRYPTION_KEY)
        (home / "node-keys").write_text(NODE_KEY)
        async with AsyncExitStack() as stack:
            for name, skew in SKEWS.items():
                daemon = Daemon(home / name, faults=True, traced=False, tables=_tables(cluster, name))
                cluster.nodes[name] = await stack.enter_async_context(closing(daemon))
                daemon.inject(clock=skew)
            await asyncio.gather(*(cluster.start(name) for name in SKEWS))
            statements = [WATCH] + [
                f"CREATE CONSTRAINT TRIGGER watch AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED "
                f"FOR EACH ROW EXECUTE FUNCTION watch('{column}')"
                for table, column in WATCHED.items()
            ]
            await asyncio.to_thread(cluster.query, ";".join(statements))
            rows = ",".join(f"('{name}','{node}')" for name, node in cluster.ids.items())
            await asyncio.to_thread(cluster.query, f"INSERT INTO watched_nodes VALUES {rows}")
            yield cluster
    finally:
        await asyncio.to_thread(server.close)


def _tables(cluster: Cluster, name: str) -> dict[str, dict[str, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    keys = {"encryption_key_file": str(cluster.home / "encryption-key"), "key_file": str(cluster.home / "node-keys")}
    work = str(cluster.work)
    return {
        "server": {"port": port},
        "store": {"url": f"{cluster.server.url(cluster.database)}&application_name={name}"},
        "node": {"address": f"http://127.0.0.1:{port}", **keys},
        "limits": {"live_agents": LIVE_AGENTS, "connections_per_key": 2000, "streams_per_key": 2000},
        "agents.faulty": {"cwd": work, "args": ["--folder", work]},
    }
