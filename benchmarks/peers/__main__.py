"""`python -m benchmarks.peers [--quick]`: compares the gateway with other programs that serve agents, in Markdown.

Each round starts one side after the other, in another order, and takes all figures of it; the table has the medians of seven
rounds. Everything is on loopback, with an empty home and no key, and one agent for all. `make bench-peers` installs the others.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass, field

from benchmarks.__main__ import machine
from benchmarks.peers import adapters, losses
from benchmarks.peers.sides import PACKAGES, SIDES, PorticoAcp
from benchmarks.sides import BURST, FAN, Portico, Session, Side
from benchmarks.wire import Turn

ROUNDS, SESSIONS, WARM_TURNS = 7, 32, 15
PAUSE = 0.02
"""Between short turns, in seconds: without it, the caches of the processor make all sides several times faster."""
IDLE_SECONDS = 0.7
ROUND_SECONDS = 60.0
"""Maximum time of one side in one round."""


@dataclass
class Samples:
    """What was measured of one side, one sample a round."""

    burst: list[float] = field(default_factory=list)
    delivered: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    fan: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def measure(side: Side, samples: Samples) -> None:
    """Start a side, take one sample of each figure, and stop it."""
    try:
        samples.start.append(await side.start())
        await asyncio.sleep(IDLE_SECONDS)
        samples.memory.append(side.memory())
        async with asyncio.timeout(ROUND_SECONDS):
            await _measure_one(await side.session(), samples)
            await _measure_many(side, samples)
    except Exception as error:
        samples.failures.append(f"{type(error).__name__}: {error}")
    finally:
        await side.stop()


async def _measure_one(session: Session, samples: Samples) -> None:
    firsts = []
    for _ in range(WARM_TURNS):
        firsts.append((await session.run(1)).first or 0.0)
        await asyncio.sleep(PAUSE)
    samples.first.append(statistics.median(firsts[3:]) * 1000)
    for _ in range(2):
        turn = await session.run(BURST)
        await asyncio.sleep(10 * PAUSE)
    # The first one is a warm-up.
    delivered = turn.delivered(BURST)
    samples.burst.append(delivered / turn.seconds / 1000)
    samples.delivered.append(delivered / BURST)


async def _measure_many(side: Side, samples: Samples) -> None:
    async def begin() -> Turn:
        return await (await side.session()).run(FAN)

    began = time.perf_counter()
    turns = await asyncio.gather(*(begin() for _ in range(SESSIONS)))
    samples.fan.append(max(turn.ended for turn in turns) - began)
    samples.delivered.append(sum(turn.delivered(FAN) for turn in turns) / SESSIONS / FAN)


def table(found: dict[type[Side], Samples]) -> str:
    """Return the medians as a table in Markdown."""
    rows = [
        "| | burst, events/s | delivered | warm: request to first event | 32 sessions of 400 events, agents started |"
        " command to healthy | idle MB |",
        f"|---|{'---|' * 6}",
    ]
    for kind, samples in found.items():
        cells = [
            middle(samples.burst, ".0f", "k"),
            _share(samples.delivered),
            middle(samples.first, ".2f", " ms"),
            middle(samples.fan, ".2f", " s"),
            middle(samples.start, ".2f", " s"),
            middle(samples.memory, ".0f", ""),
        ]
        rows.append(f"| {kind.name} {kind().version} | {' | '.join(cells)} |")
    return "\n".join(rows)


def middle(samples: list[float], digits: str, unit: str) -> str:
    """Return the median with the range."""
    if not samples:
        return "failed"
    value, low, high = (format(one, digits) for one in (statistics.median(samples), min(samples), max(samples)))
    return f"{value}{unit}" if low == high else f"{value}{unit} ({low} .. {high})"


def _share(shares: list[float]) -> str:
    if not shares:
        return "failed"
    low, high = (f"{value:.1%}".replace(".0%", "%") for value in (min(shares), max(shares)))
    return "all" if min(shares) == 1 else low if low == high else f"{low} .. {high}"


async def compare(rounds: int) -> dict[type[Side], Samples]:
    """Run all rounds, after a start of the gateway that writes byte code."""
    await measure(PorticoAcp(), Samples())
    found: dict[type[Side], Samples] = {kind: Samples() for kind in SIDES}
    for number in range(rounds):
        shift = number % len(SIDES)
        for kind in (*SIDES[shift:], *SIDES[:shift]):
            sys.stderr.write(f"round {number + 1} of {rounds}: {kind.name}\n")
            await measure(kind(), found[kind])
    return found


async def lose() -> dict[type[Side], losses.Kept]:
    """Interrupt a client and kill the program, for each side that can be restarted."""
    kept = {}
    for kind in losses.SIDES:
        try:
            kept[kind] = await losses.measure(kind())
        except Exception as error:
            kept[kind] = losses.Kept(0, 0, 0)
            sys.stderr.write(f"failed: {kind.name}: {type(error).__name__}: {error}\n")
    return kept


def main() -> int:
    """Measure and print the tables.

    Return 1 if the gateway failed or lost events, or if a warm turn or a start takes longer than with a vendor's adapter.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round")
    rounds = 1 if parser.parse_args().quick else ROUNDS
    if not PACKAGES.is_dir():
        parser.error("the other programs are not installed: make bench-peers")
    head = machine()
    found = asyncio.run(compare(rounds))
    kept = asyncio.run(lose())
    timed = asyncio.run(adapters.compare(rounds))
    sys.stdout.write(f"{head}, rounds: {rounds}.\n\n{table(found)}\n\n{losses.table(kept)}\n\n{adapters.table(timed)}\n")
    wrong = [f"{kind.name} has failed: {failure}" for kind, samples in found.items() for failure in samples.failures]
    ours = [samples for kind, samples in found.items() if issubclass(kind, Portico)]
    failed = any(one.failures or min(one.delivered) < 1 for one in ours)
    lost = min(kept[PorticoAcp].returned, kept[PorticoAcp].restarted) < BURST
    slow = adapters.behind(timed)
    sys.stdout.write("".join(f"\n{what}\n" for what in (*wrong, *slow)))
    return 1 if failed or lost or slow else 0


if __name__ == "__main__":
    sys.exit(main())
