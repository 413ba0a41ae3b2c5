"""`python -m benchmarks.postgresql_commits`: the transaction that begins a turn, with and without a pipeline, and an fsync.

The server is started for it, with PostgreSQL's defaults, in a folder of /tmp. All ways are measured in turn, so that other work
on the machine changes all of them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

import psycopg

from benchmarks.figures import percentile
from benchmarks.postgresql_server import postgresql_server
from gateway.store import EventRow, MessageRow, RunRecord, SessionRecord, Store

WARM_UP, TURNS = 20, 300
PAUSE = 0.003
BODY = b'{"kind":"turn_start","prompt":"hello"}'
BLOCK = 8192
Way = Callable[[int], Awaitable[None]]


async def main() -> None:
    """Print a table."""
    with postgresql_server() as server, tempfile.TemporaryFile(dir="/tmp") as file:
        url = server.url(server.create_empty_database())
        stores = {
            "synchronous_commit=off": await Store.open(f"{url}&options=-c%20synchronous_commit%3Doff"),
            "with an fsync": await Store.open(url),
        }
        ways: dict[str, Way] = {"fdatasync of 8 kB, without PostgreSQL": _fdatasync(file.fileno())}
        for what, store in stores.items():
            await store.sessions.create(SessionRecord(what, "echo"), [])
            ways[f"{what}, each statement awaited"] = _transaction(store, what, pipeline=False)
            ways[f"{what}, pipeline"] = _transaction(store, what, pipeline=True)
        times = await _measured(ways)
        for store in stores.values():
            await store.close()
    sys.stdout.write("| | median | fastest tenth | slowest tenth | CPU time of the process |\n|---|---:|---:|---:|---:|\n")
    for name, found in times.items():
        cells = [f"{percentile([took for took, _ in found], share):.2f} ms" for share in (0.5, 0.1, 0.9)]
        cells.append(f"{percentile([cpu for _, cpu in found], 0.5):.2f} ms")
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")


async def _measured(ways: dict[str, Way]) -> dict[str, list[tuple[float, float]]]:
    """The time and the CPU time of each execution in ms."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for n in range(WARM_UP + TURNS):
        for name, way in ways.items():
            began, cpu = time.perf_counter(), time.process_time()
            await way(n + 1)
            found[name].append(((time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000))
            await asyncio.sleep(PAUSE)
    return {name: samples[WARM_UP:] for name, samples in found.items()}


def _transaction(store: Store, session_id: str, *, pipeline: bool) -> Way:
    async def begin_turn(n: int) -> None:
        psycopg.Pipeline.is_supported = classmethod(lambda cls: pipeline)  # type: ignore[method-assign, assignment]
        number = 2 * n + pipeline
        run = RunRecord(f"{session_id} {number}", session_id, "running", None, number)
        await store.runs.start(run, [MessageRow("{}", number)], EventRow(session_id, number, number, BODY))

    return begin_turn


def _fdatasync(file: int) -> Way:
    os.write(file, bytes(BLOCK * (WARM_UP + TURNS + 1)))
    os.fsync(file)

    async def sync(n: int) -> None:
        os.pwrite(file, b"x" * BLOCK, n * BLOCK)
        os.fdatasync(file)

    return sync


if __name__ == "__main__":
    asyncio.run(main())
