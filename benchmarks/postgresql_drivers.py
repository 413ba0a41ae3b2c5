"""`python -m benchmarks.postgresql_drivers URL`: the transaction that begins a turn, by psycopg and by asyncpg.

asyncpg is no dependency: `pip install asyncpg greenlet` before. URL is an empty database (docs/decisions/postgresql.md).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

from sqlalchemy import insert, make_url

from gateway.store import EventRow, MessageRow, RunRecord, SessionRecord, Store, schema

TURNS, ROUNDS = 300, 5
BODY = b'{"kind":"turn_start","prompt":"hello"}'


async def main(url: str) -> None:
    """Measure each way in turn, several times, and print the medians of time and CPU time of a transaction."""
    store = await Store.open(url)
    await store.sessions.create(SessionRecord("s", "echo"), [])
    ways: dict[str, Callable[[int], Awaitable[None]]] = {"psycopg, synchronous engine on a thread": _by_store(store)}
    engine, ways["asyncpg, asyncio engine"] = _by_asyncio_engine(url)
    connection, ways["asyncpg alone"] = await _by_asyncpg(url)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    number = 0
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(TURNS):
                number += 1
                await way(number)
            spent[name].append(((time.perf_counter() - began) / TURNS, (time.process_time() - cpu) / TURNS))
    for name, measured in spent.items():
        took, cpu = (median(part) * 1e6 for part in zip(*measured, strict=True))
        sys.stdout.write(f"{name:45} {took:6.0f} us, CPU {cpu:5.0f} us\n")
    await connection.close()
    await engine.dispose()
    await store.close()


def _by_store(store: Store) -> Callable[[int], Awaitable[None]]:
    async def write(n: int) -> None:
        await store.runs.start(RunRecord(f"r{n}", "s", "running", None, n), [MessageRow("{}", n)], EventRow("s", n, n, BODY))

    return write


def _by_asyncio_engine(url: str):  # type: ignore[no-untyped-def]
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"))

    async def write(n: int) -> None:
        async with engine.begin() as connection:
            run = {"id": f"r{n}", "log_id": "s", "state": "running", "first_seq": n, "started_at": 0.0}
            await connection.execute(insert(schema.runs), run)
            message = {"session_id": "s", "position": 1_000_000 + n, "body": "{}", "seq": n}
            await connection.execute(insert(schema.messages), message)
            await connection.execute(insert(schema.events), {"log_id": "s", "first": n, "last": n, "body": BODY})

    return engine, write


async def _by_asyncpg(url: str):  # type: ignore[no-untyped-def]
    import asyncpg

    connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    run = "INSERT INTO runs (id, log_id, state, first_seq, started_at) VALUES ($1, 's', 'running', $2, 0)"
    message = "INSERT INTO messages VALUES ('s', $1, '{}', $2)"
    event = "INSERT INTO events VALUES ('s', $1, $1, $2)"

    async def write(n: int) -> None:
        async with connection.transaction():
            await connection.execute(run, f"r{n}", n)
            await connection.execute(message, 1_000_000 + n, n)
            await connection.execute(event, n, BODY)

    return connection, write


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
