"""Many concurrent sessions: the time of their turns, the cost of an event, and its way through the daemon under load."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from benchmarks.client import Connection, Response
from benchmarks.figures import Figure, median, percentile
from benchmarks.servers import FAN, RunningServer, floor, let_server_finish, portico
from benchmarks.turns import InvalidEvents, check, check_floor, first_turn, floor_turn, new_session, session_of, turn

SESSIONS = 32
SIZES, QUICK_SIZES = (1, 8, 32, 100, 200), (1, 32)
"""Numbers of sessions at which the cost of an event is compared."""
TURNS, QUICK_TURNS = 64, 16
"""Turns of each number of sessions, at least."""
RATIO = 1.5
GROWTH = 1.2
"""How much more CPU time an event may cost with many sessions than with one."""
INTERVAL = 0.01
"""Seconds between two events of a session of an agent with a steady pace."""
PACED = re.compile(rb"event (\d+) (\d+) ")
AT_ONCE = 16
"""Sessions that are created at the same time."""

RunTurn = Callable[[Connection], Awaitable[Response]]
RunPaced = Callable[[float], Awaitable[list[float]]]
"""Runs a turn of so many seconds in all sessions at once. Returns the time of each event on its way in ms."""


async def fanout(quick: bool) -> list[Figure]:
    """Measure 32 sessions with 400 events each, the cost of an event with 1 to 200 sessions, and the way of an event."""
    return (
        await _together(1 if quick else 5)
        + await _costs(*((QUICK_SIZES, QUICK_TURNS) if quick else (SIZES, TURNS)))
        + await _ways(0.3 if quick else 3.0)
    )


async def _together(repeats: int) -> list[Figure]:
    """Run turns in 32 sessions at once, with live agents and with agents that are started, and the same of the floor."""
    async with portico(live_agents=2 * SESSIONS) as daemon, floor("script") as bare, AsyncExitStack() as stack:
        to_daemon = await connected(daemon, SESSIONS, stack)
        to_floor = await connected(bare, SESSIONS, stack)
        ids = await sessions_with_agents(to_daemon, "script")
        await to_floor[0].request("POST", "/warm", {"count": SESSIONS})
        sides: list[tuple[list[Connection], RunTurn, Callable[[bytes, int], int]]] = [
            (to_daemon, lambda to: turn(to, ids[to], "fan"), check),
            (to_floor, lambda to: floor_turn(to, "fan"), check_floor),
            (to_daemon, lambda to: first_turn(to, "script", "fan"), check),
            (to_floor, lambda to: floor_turn(to, "fan", True), check_floor),
        ]
        times: list[list[float]] = [[] for _ in sides]
        for _ in range(repeats + 1):
            for samples, (connections, run_turn, check_body) in zip(times, sides, strict=True):
                took, answers = await at_once(connections, run_turn, check_body)
                samples.append(took)
                if run_turn is sides[2][1]:
                    # So that the next round has free slots: what is measured is the start of agents, not their end.
                    ended = [f"/session/{session_of(answer)}" for answer in answers]
                    await asyncio.gather(*(to.request("DELETE", path) for to, path in zip(connections, ended, strict=True)))
                await let_server_finish()
    # The first round is a warm-up.
    warm, warm_floor, cold, cold_floor = (samples[1:] for samples in times)
    total = SESSIONS * FAN
    return [
        Figure("delivered", total, "events", at_least=total, at_most=total, comment="in every repetition, in order"),
        median("wall", warm, "s"),
        median("floor", warm_floor, "s"),
        Figure("ratio", statistics.median(warm) / statistics.median(warm_floor), "x floor", at_most=RATIO),
        median("rate", [total / seconds for seconds in warm], "events/s"),
        median("wall with start of agents", cold, "s"),
        median("floor with start of emitters", cold_floor, "s"),
        Figure("ratio with start", statistics.median(cold) / statistics.median(cold_floor), "x floor", at_most=RATIO),
    ]


async def _costs(sizes: Sequence[int], turns: int) -> list[Figure]:
    """Compare the daemon's CPU time and the time of an event between numbers of concurrent sessions with live agents."""
    async with portico(live_agents=2 * sizes[-1]) as daemon, AsyncExitStack() as stack:
        connections = await connected(daemon, sizes[-1], stack)
        ids = await sessions_with_agents(connections, "script")
        cpu_each, wall_each = dict[int, list[float]](), dict[int, list[float]]()
        for size in sizes:
            cpu_each[size], wall_each[size] = [], []
            rounds = max(turns // size, 2)
            for _ in range(2):
                before, took = daemon.cpu_seconds(), 0.0
                for _ in range(rounds):
                    took += (await at_once(connections[:size], lambda to: turn(to, ids[to], "fan"), check))[0]
                # Writes to the store count, too.
                await let_server_finish()
                events = rounds * size * FAN
                cpu_each[size].append((daemon.cpu_seconds() - before) / events * 1e6)
                wall_each[size].append(took / events * 1e6)
    total = sizes[-1] * FAN
    figures = [Figure(f"{sizes[-1]} sessions, delivered", total, "events", at_least=total, at_most=total)]
    for size in sizes:
        figures.append(Figure(f"CPU of an event, {size} sessions", min(cpu_each[size]), "us", cpu_each[size]))
        figures.append(Figure(f"time of an event, {size} sessions", min(wall_each[size]), "us", wall_each[size]))
    single, *several = (min(cpu_each[size]) for size in sizes)
    figures.append(Figure("CPU of an event, growth", max(several) / single, "x one session", at_most=GROWTH))
    return figures


async def _ways(seconds: float) -> list[Figure]:
    """Time the way of events from the write of their agent to their client, in 32 sessions with 100 events a second each."""
    async with paced(SESSIONS) as sides:
        delays = []
        for _, run_turns in sides:
            delays.append(await run_turns(seconds))
            await let_server_finish()
    figures = []
    for name, found in zip(("event on its way", "floor, event on its way"), delays, strict=True):
        figures += [Figure(f"{name}, p{share:g}", percentile(found, share / 100), "ms", found) for share in (50, 99)]
    return figures


@asynccontextmanager
async def paced(sessions: int) -> AsyncIterator[list[tuple[RunningServer, RunPaced]]]:
    """Run the gateway and the floor, each with live agents of a steady pace, and yield both with what runs their turns."""
    async with (
        portico(live_agents=2 * sessions, module="benchmarks.paced_daemon") as daemon,
        floor("paced") as bare,
        AsyncExitStack() as stack,
    ):
        to_daemon = await connected(daemon, sessions, stack)
        to_floor = await connected(bare, sessions, stack)
        ids = await sessions_with_agents(to_daemon, "echo", f"1 {INTERVAL}")
        await to_floor[0].request("POST", "/warm", {"count": sessions})
        yield [
            (daemon, partial(_paced_turns, to_daemon, lambda to, prompt: turn(to, ids[to], prompt))),
            (bare, partial(_paced_turns, to_floor, floor_turn)),
        ]


async def _paced_turns(
    connections: Sequence[Connection], run_turn: Callable[[Connection, str], Awaitable[Response]], seconds: float
) -> list[float]:
    """Run a turn of so many seconds on each connection. Return the time of each event on its way in ms."""
    count = round(seconds / INTERVAL)
    return _delays(await asyncio.gather(*(run_turn(to, f"{count} {INTERVAL}") for to in connections)), count)


def _delays(answers: Sequence[Response], count: int) -> list[float]:
    """Return the time from the write of each event to its arrival in ms. Raises InvalidEvents if events are missing."""
    delays = []
    for answer in answers:
        ends = [end for end, _ in answer.arrivals]
        found = list(PACED.finditer(answer.raw))
        if [int(event[1]) for event in found] != list(range(count)):
            raise InvalidEvents(f"{len(found)} events instead of {count}, or not in order")
        delays += [(answer.arrivals[bisect_right(ends, event.end() - 1)][1] - int(event[2]) / 1e9) * 1000 for event in found]
    return delays


async def connected(server: RunningServer, count: int, stack: AsyncExitStack) -> list[Connection]:
    return [await stack.enter_async_context(server.connect()) for _ in range(count)]


async def sessions_with_agents(connections: Sequence[Connection], agent: str, text: str = "hello") -> dict[Connection, str]:
    """Create a session with a live agent on each connection."""
    ids = list[str]()
    for start in range(0, len(connections), AT_ONCE):
        ids += await asyncio.gather(*(new_session(to, agent, text) for to in connections[start : start + AT_ONCE]))
    return dict(zip(connections, ids, strict=True))


async def at_once(
    connections: Sequence[Connection], run_turn: RunTurn, check_body: Callable[[bytes, int], int]
) -> tuple[float, list[Response]]:
    """Run one turn on each connection. Return the wall time in seconds, and the responses. Raises InvalidEvents."""
    await asyncio.gather(*(to.ready() for to in connections))
    began = time.perf_counter()
    answers = await asyncio.gather(*(run_turn(to) for to in connections))
    took = time.perf_counter() - began
    for answer in answers:
        check_body(answer.body, FAN)
    return took, answers
