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
POINTS, QUICK_POINTS = 6, 1
"""The most kills of one version."""


async def migrations(run: Run) -> None:
    """`kill -9` before and after each write of a migration from each version, and of the creation of a database."""
    jobs = [partial(_version, run, version) for version in range(NEW, schema.VERSION)]
    await run.concurrently(jobs, 2)


async def _version(run: Run, version: int) -> None:
    async with run.daemon(start=False, faults=True) as daemon:
        _create(daemon, version)
        await daemon.start()
        writes = _migration([what for _, what in daemon.writes(daemon.inject_id)])
        await daemon.stop()
    # A kill before a write is one after the write before it.
    points = [*((n, "before") for n in range(1, writes + 1)), (writes, "after")]
    limit = QUICK_POINTS if run.quick else POINTS
    if len(points) > limit:
        points = sorted(run.random(version).sample(points, limit))
    for n, when in points:
        source = f"version {version}" if version else "no database"
        await run.case(f"{source}: kill {when} write {n} of {writes}", partial(_kill, run, version, n, when))


def _migration(writes: list[str]) -> int:
    """The number of writes until the version is stored."""
    last = max(n for n, what in enumerate(writes, 1) if what.endswith(" schema_version"))
    return last


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
