"""What a client can still read of a turn after it has lost its connection, and after the program was killed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.sides import PorticoAcp, SandboxAgent, StdioToWs
from benchmarks.sides import BURST, Session, Side
from benchmarks.wire import numbers

ENOUGH = 1_000
"""The client leaves when it has received this many events, or some more."""
AWAY_SECONDS = 1.0
SIDES: Sequence[type[Side]] = (SandboxAgent, StdioToWs, PorticoAcp)


@dataclass(frozen=True)
class Kept:
    """How many of 10,000 events a client has.

    `left` when it leaves, `returned` when it has come back and read on, `restarted` from a restarted program.
    """

    left: int
    returned: int
    restarted: int


async def measure(side: Side) -> Kept:
    """Leave in the middle of a burst, return after a second, then kill and restart the program and read the turn again."""
    async with side, asyncio.timeout(60):
        session = await side.session()
        received = await _leave(session)
        await asyncio.sleep(AWAY_SECONDS)
        more = await session.resume(received)
        await side.kill_and_restart()
        again = await session.replay(received)
    return Kept(len(numbers(received)), len({*numbers(received), *numbers(more)}), len(set(numbers(again))))


async def _leave(session: Session) -> bytes:
    """Begin a burst, and return what was received when the connections are closed."""
    collector = session.begin(BURST)
    # Polled, because no single event is certain to come.
    while len(numbers(collector.data)) < ENOUGH and not collector.done.done():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    collector.done.cancel()
    for wire in session.wires:
        wire.transport.abort()
        wire.collector = None
    return collector.data


def table(found: Mapping[type[Side], Kept]) -> str:
    """Return a table in Markdown."""
    rows = [
        "| of 10,000 events | received when the client left | after its return | read after `kill -9` and a new start |",
        "|---|---|---|---|",
    ]
    rows += [f"| {kind.name} | {kept.left:,} | {kept.returned:,} | {kept.restarted:,} |" for kind, kept in found.items()]
    return "\n".join(rows)
