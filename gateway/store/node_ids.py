"""The id of a node, which only one daemon has: one that starts finds out whether the earlier one with its id still runs.

A daemon has the lock of its id as long as it is connected to the database (PostgresqlBackend). The server releases the lock of a
process that was killed within milliseconds, but that of a machine which is gone without a word only when it notices that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.errors import ConfigError, StoreUnavailable
from gateway.store.backend import NodeIdTaken
from gateway.store.sql import Connection

log = logging.getLogger(__name__)

PAUSE = 0.05
"""Seconds between two attempts to get the lock."""
LATE = 1.0
"""Seconds between two attempts, or half of `silent`, after which heartbeats may be missing because the database was stopped, or
this process was.
"""
KEPT = 1.0
"""Seconds for which a process keeps the lock after a heartbeat that is not its last one: on a busy machine, the server releases
the lock of a process that was killed some time after the last one is stored.
"""


_LATEST = "SELECT address, heartbeat_at, {now} - heartbeat_at FROM nodes WHERE id = :id"


class NodeRuns(ConfigError):
    """A daemon with the id of this node runs already."""


async def write_first(
    write: Callable[[], Awaitable[None]],
    read: Callable[[Callable[[Connection], Any]], Awaitable[Any]],
    node: str,
    silent: float,
) -> None:
    """Executes the first transaction of a node, once no other daemon has its id. Raises NodeRuns if one sends heartbeats.

    `write` executes it, and `read` executes a function that reads the database. The connection of a daemon that has the id, but
    sends no heartbeat for `silent` seconds, is ended: its machine is gone, or it was stopped. If it goes on later, all of its
    writes raise NodeIdTaken.
    """
    since = looked = time.monotonic()
    holder: int | None = None
    heartbeat, beat_at = 0.0, float("inf")
    while True:
        try:
            return await write()
        except NodeIdTaken as error:
            taken = error
        address, latest = await read(lambda connection: _node(connection, node))
        now = time.monotonic()
        if taken.holder != holder or now - looked > max(LATE, silent / 2):
            since, beat_at = now, float("inf")
        if now - beat_at >= KEPT:
            raise NodeRuns(f"a daemon with the id of this node runs already: {node}{address and f', at {address}'}")
        if holder is None:
            log.info("a connection to the database has the id of this node: waiting until it ends, or for a heartbeat")
        elif latest not in (0.0, heartbeat):
            beat_at = min(beat_at, now)
        holder, heartbeat, looked = taken.holder, latest, now
        if now - since >= silent:
            log.warning("the earlier process of this node has sent no heartbeat for %g s: its connection is ended", now - since)
            try:
                await read(taken.end_holder)
            except StoreUnavailable as error:
                # Of another role, for example. The server ends it when it notices that the machine is gone.
                log.warning("that connection cannot be ended, and is waited for: %s", error)
                since = now
        await asyncio.sleep(PAUSE)


async def wait_until_silent(read: Callable[[Callable[[Connection], Any]], Awaitable[Any]], node: str, silent: float) -> None:
    """Waits until no process has sent a heartbeat with the id of a node for `silent` seconds. Raises NodeRuns if one sends more.

    It is for a database behind a pooler, where no lock shows that an earlier process has ended. One that has stopped is not
    waited for.
    """
    first: float | None = None
    while True:
        row = await read(lambda connection: connection.first(_LATEST, {"id": node}))
        if row is None or row[2] >= silent:
            return
        if first is None:
            first = row[1]
            log.info("the earlier process of this node was not stopped: waiting until it counts as silent, or for a heartbeat")
        if row[1] != first:
            raise NodeRuns(f"a daemon with the id of this node runs already: {node}, at {row[0]}")
        await asyncio.sleep(PAUSE)


def _node(connection: Connection, node: str) -> tuple[str, float]:
    """The address of a node and the time of its last heartbeat, or "" and 0."""
    row = connection.first("SELECT address, heartbeat_at FROM nodes WHERE id = :id", {"id": node})
    return ("", 0.0) if row is None else (row[0], row[1])
