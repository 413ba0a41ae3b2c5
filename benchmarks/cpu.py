"""CPU time: of a daemon with idle sessions, of each event of a burst, and of each event of many sessions at a steady pace."""

from __future__ import annotations

import asyncio

from benchmarks.fanout import INTERVAL, paced
from benchmarks.figures import Figure, median, median_ratio
from benchmarks.servers import BURST, RunningServer, floor, let_server_finish, own_processor, portico
from benchmarks.turns import check, check_floor, floor_turn, new_session, turn

SESSIONS = 100
SECONDS = 12.0
"""Longer than all periodic timers of the daemon but those of minutes."""
STEADY_SECONDS = 3.0
STEADY = 1.82
"""The CPU time of an event of 100 sessions with 100 events a second each, as a ratio to the floor's.

It is 1.05 times what the last commit of 2026-11-27 took: 1.73, the median of three runs of three turns each, with one processor
and real-time priority (`chrt -r 10 taskset -c 1`), on 2026-11-28.
"""


async def cpu(quick: bool) -> list[Figure]:
    """Measure the CPU time of a daemon with 100 idle sessions, with live agents and without, a burst, and 100 busy sessions."""
    seconds = 6.0 if quick else SECONDS
    async with portico(live_agents=2 * SESSIONS) as live, portico(sleep_after=0.05) as stored:
        for daemon in (live, stored):
            async with daemon.connect() as to:
                for _ in range(SESSIONS):
                    await new_session(to, "echo")
        await stored.wait_for_agents_to_end()
        await let_server_finish(6.0)
        idle = await asyncio.gather(*(_idle(daemon, seconds) for daemon in (live, stored)))
    figures, comment = list[Figure](), f"{SESSIONS} sessions, {seconds:g} s"
    for name, (share, wake_ups) in zip(("live agents", "no agents"), idle, strict=True):
        figures.append(Figure(f"idle, {name}", share * 100, "% of a core", at_most=0.3, comment=comment))
        figures.append(Figure(f"idle, {name}, wake-ups", wake_ups / seconds, "/s", at_most=11.0))
    return figures + await _burst(4 if quick else 12) + await _steady(3 if quick else 5)


async def _idle(daemon: RunningServer, seconds: float) -> tuple[float, int]:
    """Return the share of a core that a daemon uses while it has no requests, and how often it wakes up."""
    before, wake_ups = daemon.cpu_seconds(), daemon.wake_ups()
    await asyncio.sleep(seconds)
    return (daemon.cpu_seconds() - before) / seconds, daemon.wake_ups() - wake_ups


async def _burst(repeats: int) -> list[Figure]:
    ours, floors = [], []
    async with portico() as daemon, floor("script") as bare, daemon.connect() as to_daemon, bare.connect() as to_floor:
        session = await new_session(to_daemon, "script")
        await to_floor.request("POST", "/warm", {"count": 1})
        for _ in range(repeats):
            before = bare.cpu_seconds()
            check_floor((await floor_turn(to_floor, "burst")).body, BURST)
            await let_server_finish()
            floors.append((bare.cpu_seconds() - before) / BURST * 1e6)
            before = daemon.cpu_seconds()
            check((await turn(to_daemon, session, "burst")).body, BURST)
            # Writes to the store count, too.
            await let_server_finish()
            ours.append((daemon.cpu_seconds() - before) / BURST * 1e6)
    each, floor_each = median("burst, each event", ours[1:], "us"), median("floor, each event", floors[1:], "us")
    return [each, floor_each, Figure("burst, ratio", each.value / floor_each.value, "x floor", at_most=4.0)]


async def _steady(repeats: int) -> list[Figure]:
    """Compare the CPU time of the daemon and of the floor for 100 sessions with 100 events a second each, in turn.

    The fewer events a server finds when it wakes up, the more it takes for each, and that depends on the other work on the
    machine. The bound holds only for servers that have a processor of their own.
    """
    costs: tuple[list[float], list[float]] = [], []
    with own_processor() as alone:
        async with paced(SESSIONS) as sides:
            for _ in range(repeats + 1):
                for (server, run_turns), samples in zip(sides, costs, strict=True):
                    before = server.cpu_seconds()
                    events = len(await run_turns(STEADY_SECONDS))
                    # Writes to the store count, too.
                    await let_server_finish()
                    samples.append((server.cpu_seconds() - before) / events * 1e6)
    # The first repetition of each side is a warm-up.
    ours, floors = (samples[1:] for samples in costs)
    comment = f"{SESSIONS} sessions with {1 / INTERVAL:g} events a second each"
    return [
        median("steady, each event", ours, "us", comment=comment),
        median("floor, steady, each event", floors, "us", comment=comment),
        Figure("steady, ratio", median_ratio(ours, floors), "x floor", at_most=STEADY if alone else None),
    ]
