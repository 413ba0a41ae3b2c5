"""`kill -9` while a database is created, before and after each write; then the next start."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial

from gateway.store import schema
from tests.faults.campaign import Run
from tests.faults.daemon import Conversation, Daemon

QUICK_POINTS = 3
"""Kills with `--quick`."""
WORKERS = 5


async def creation(run: Run) -> None:
    """`kill -9` before and after each write of the creation of a database."""
    transactions = await _find_writes(run)
    points = _points(transactions)
    if run.quick:
        points = run.random("creation").sample(points, QUICK_POINTS)
    jobs = []
    for n, when in points:
        jobs.append(partial(run.case, f"kill {when} write {n} of {len(transactions)}", partial(_kill, run, n, when)))
    await run.concurrently(jobs, WORKERS)


def _points(transactions: list[int]) -> list[tuple[int, str]]:
    """Before each write, and after the last one of each transaction: after another one is before the next.

    `transactions` has the number of each write's transaction.
    """
    points: list[tuple[int, str]] = []
    for n, (this, following) in enumerate(zip(transactions, [*transactions[1:], None], strict=True), 1):
        points.append((n, "before"))
        if this != following:
            points.append((n, "after"))
    return points


async def _find_writes(run: Run) -> list[int]:
    """Create a database without a kill, and find the writes until the version is stored: the number of each one's transaction."""
    async with run.daemon(start=False, faults=True) as daemon:
        await daemon.start()
        writes = daemon.writes(daemon.inject_id)
        await daemon.end()
    last = max(n for n, (_, what) in enumerate(writes, 1) if what.endswith(" store_version"))
    return [transaction for transaction, _ in writes[:last]]


async def _kill(run: Run, n: int, when: str) -> list[str]:
    async with run.daemon(start=False, faults=True) as daemon:
        daemon.inject(kill_at=n, kill=when)
        try:
            await daemon.start()
        except RuntimeError:
            pass
        else:
            return ["the daemon was not killed"]
        daemon.inject()
        await daemon.start()
        return await _works(daemon)


async def _works(daemon: Daemon) -> list[str]:
    """A new session takes a turn, and the database has its version once."""
    async with daemon.client() as client:
        problems = await (await Conversation(client).create()).check(1)
    code, seconds = await daemon.end()
    with closing(sqlite3.connect(daemon.data / "portico.db")) as database:
        found = database.execute("SELECT version FROM store_version").fetchall()
    if code != 0 or found != [(schema.VERSION,)]:
        problems.append(f"exit code {code} after {seconds:.1f} s, versions of the store {found}")
    return problems
