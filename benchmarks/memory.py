"""Memory of a daemon: when it is idle, and for each session without a live agent."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure, median
from benchmarks.latency import IMPORTS
from benchmarks.servers import ROOT, RunningServer, environment, let_server_finish, portico
from benchmarks.turns import new_session

IDLE = 1.5
"""The bound of an idle daemon's memory, as a multiple of the memory of the imports."""
AT_ONCE = 4
"""Sessions that are created at the same time."""
RSS = "import psutil; print(psutil.Process().memory_info().rss)"


async def memory(quick: bool) -> list[Figure]:
    """Measure the resident memory after the start and one GET /meta, and after the agents of many sessions were ended."""
    idle = []
    for _ in range(2 if quick else 5):
        async with portico() as daemon:
            idle.append(await idle_memory(daemon))
    floor = await asyncio.to_thread(imports_memory)
    count = 100 if quick else 500
    async with portico(sleep_after=0.05, live_agents=2 * AT_ONCE) as daemon:
        before = await idle_memory(daemon)
        await _sessions(daemon, count)
        first = daemon.memory()
        await _sessions(daemon, count)
        second = daemon.memory()
    return [
        median("idle", idle, "MB"),
        Figure("floor", floor, "MB", comment=f"python -c '{IMPORTS}'"),
        Figure("ratio", statistics.median(idle) / floor, "x floor", at_most=IDLE),
        Figure("per idle session", (first - before) * 1000 / count, "KB", at_most=200.0, comment=f"{count} sessions on echo"),
        Figure(
            "per further session",
            (second - first) * 1000 / count,
            "KB",
            at_most=4.0,
            comment=f"{count} more, after one-time allocations",
        ),
    ]


async def idle_memory(daemon: RunningServer) -> float:
    """Return the resident memory after one GET /meta, in MB."""
    async with daemon.connect() as to:
        assert b"agents" in (await to.request("GET", "/meta")).body
    await let_server_finish(0.5)
    return daemon.memory()


async def _sessions(daemon: RunningServer, count: int) -> None:
    """Create sessions, and wait until all their agents are ended."""

    async def some() -> None:
        async with daemon.connect() as to:
            for _ in range(count // AT_ONCE):
                await new_session(to, "echo")

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await daemon.wait_for_agents_to_end()
    await let_server_finish(0.5)


def imports_memory() -> float:
    """Return the resident memory of a process with the daemon's imports, in MB."""
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        command = [sys.executable, "-c", f"{IMPORTS}; {RSS}"]
        done = subprocess.run(command, cwd=ROOT, env=environment(Path(folder)), check=True, capture_output=True, timeout=20)
        return int(done.stdout) / 1e6
