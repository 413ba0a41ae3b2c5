"""`kill -9` while a database is created or migrated, before and after each write; then the next start."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from gateway.store import schema
from tests.faults.campaign import Run
from tests.faults.daemon import ROOT, Conversation, Daemon

OLD = ROOT / "tests" / "gateway" / "store" / "old_databases"
"""A database as the gateway of each older version created it, in SQL, with the session OLD_SESSION."""
OLD_SESSION = "sess_a"
NEW = 0
"""The version of a folder without a database."""
QUICK_POINTS = 1
"""Kills of one version with `--quick`."""
WORKERS = 5


async def migrations(run: Run) -> None:
    """`kill -9` before and after each write of a migration from each version, and of the creation of a database."""
    found: dict[int, list[int]] = {}
    versions = range(NEW, schema.VERSION)
    await run.concurrently([partial(_find_writes, run, version, found) for version in versions], WORKERS)
    jobs = []
    for version in versions:
        points = _points(found[version])
        if run.quick:
            points = run.random(version).sample(points, QUICK_POINTS)
        for n, when in points:
            source = f"version {version}" if version else "no database"
            name = f"{source}: kill {when} write {n} of {len(found[version])}"
            jobs.append(partial(run.case, name, partial(_kill, run, version, n, when)))
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


async def _find_writes(run: Run, version: int, found: dict[int, list[int]]) -> None:
    """Migrate without a kill, and find the writes until the version is stored: the number of each one's transaction."""
    async with run.daemon(start=False, faults=True) as daemon:
        _create(daemon, version)
        await daemon.start()
        writes = daemon.writes(daemon.inject_id)
        await daemon.stop()
    last = max(n for n, (_, what) in enumerate(writes, 1) if what.endswith(" schema_version"))
    found[version] = [transaction for transaction, _ in writes[:last]]


async def _kill(run: Run, version: int, n: int, when: str) -> list[str]:
    async with run.daemon(start=False, faults=True) as daemon:
        _create(daemon, version)
        daemon.inject(kill_at=n, kill=when)
        try:
            await daemon.start()
        except RuntimeError:
            pass
        else:
            return ["the daemon was not killed"]
        daemon.inject()
        await daemon.start()
        return await _works(daemon, version)


async def _works(daemon: Daemon, version: int) -> list[str]:
    """The old session has its history and takes a turn; so does a new one."""
    problems = []
    async with daemon.client() as client:
        if version != NEW:
            answer = await client.get(f"/session/{OLD_SESSION}")
            if answer.status_code != 200 or len(answer.json()["history"]["full"]) < 3:
                problems.append(f"the old session: {answer.status_code} {answer.text[:200]}")
            body = {"messages": [{"role": "user", "content": "again"}]}
            answer = await client.post(f"/session/{OLD_SESSION}", json=body)
            if answer.status_code != 200:
                problems.append(f"a turn of the old session: {answer.status_code} {answer.text[:200]}")
        problems += await (await Conversation(client).create()).check(1)
    code, seconds = await daemon.stop()
    with closing(sqlite3.connect(daemon.data / "portico.db")) as database:
        found = database.execute("SELECT version FROM schema_version").fetchall()
    if code != 0 or found != [(schema.VERSION,)]:
        problems.append(f"exit code {code} after {seconds:.1f} s, schema versions {found}")
    return problems


def _create(daemon: Daemon, version: int) -> None:
    if version != NEW:
        _load(daemon.data / "portico.db", OLD / f"version_{version}.sql")


def _load(path: Path, script: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script.read_text())
