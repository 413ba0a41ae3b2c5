"""Nodes over PostgreSQL beside a daemon with SQLite: turns, bursts, many sessions, and what a second node adds."""

from __future__ import annotations

import asyncio
import statistics
from bisect import bisect_right
from contextlib import AsyncExitStack

from benchmarks import servers
from benchmarks.client import Connection, Response
from benchmarks.fanout import PACED, SESSIONS, at_once, connected, sessions_with_agents
from benchmarks.figures import Figure, median, percentile
from benchmarks.postgresql_server import postgresql_server
from benchmarks.servers import BURST, FAN, RunningServer, cluster_node, let_server_finish, portico
from benchmarks.turns import check, message, new_session, turn

WARM_UP = 20
FORWARDED = 2.5
"""Milliseconds that a turn by way of another node may take longer: 2 with the client of our own, which aiohttp has replaced."""
PACE = 0.02
"""Seconds between two events of the turn that is followed."""
SKIPPED = 15
"""Events at its beginning: followers connect meanwhile."""
SIDES = ("SQLite", "PostgreSQL")


async def postgresql(quick: bool) -> list[Figure]:
    """Measure a node over PostgreSQL beside a daemon with SQLite, in turn, and a second node that forwards and follows."""
    if servers.store_url:
        raise ValueError("it starts a server of its own, and compares it with SQLite: leave out --store")
    with postgresql_server() as server:
        url, other_url = (server.url(server.create_empty_database()) for _ in range(2))
        return await _beside(url, quick) + await _of_two_nodes(other_url, quick)


async def _beside(url: str, quick: bool) -> list[Figure]:
    async with portico(live_agents=2 * SESSIONS) as sqlite, cluster_node(url, live_agents=2 * SESSIONS) as node:
        sides = dict(zip(SIDES, (sqlite, node), strict=True))
        return await _first_events(sides, quick) + await _bursts(sides, quick) + await _fans(sides, quick)


async def _first_events(sides: dict[str, RunningServer], quick: bool) -> list[Figure]:
    firsts, wholes = dict[str, list[float]](), dict[str, list[float]]()
    async with AsyncExitStack() as stack:
        to = {side: await stack.enter_async_context(server.connect()) for side, server in sides.items()}
        ids = {side: await new_session(to[side], "echo") for side in SIDES}
        for n in range(WARM_UP + (60 if quick else 300)):
            if n in (0, WARM_UP):
                firsts, wholes = {side: [] for side in SIDES}, {side: [] for side in SIDES}
            for side in SIDES:
                answer = await turn(to[side], ids[side], "hello")
                assert answer.first is not None and b"turn_stop" in answer.body
                firsts[side].append(answer.first * 1000)
                wholes[side].append(answer.seconds * 1000)
                await asyncio.sleep(0.01)
    figures = list[Figure]()
    for name, samples in (("first event", firsts), ("whole turn", wholes)):
        figures += [median(f"{name}, {side}", samples[side], "ms") for side in SIDES]
        figures += [Figure(f"{name}, {side}, fastest tenth", percentile(samples[side], 0.1), "ms") for side in SIDES]
    return figures


async def _bursts(sides: dict[str, RunningServer], quick: bool) -> list[Figure]:
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu: dict[str, list[float]] = {side: [] for side in SIDES}
    async with AsyncExitStack() as stack:
        to = {side: await stack.enter_async_context(server.connect()) for side, server in sides.items()}
        ids = {side: await new_session(to[side], "script") for side in SIDES}
        for _ in range(5 if quick else 12):
            for side, server in sides.items():
                before = server.cpu_seconds()
                answer = await turn(to[side], ids[side], "burst")
                rates[side].append(check(answer.body, BURST) / answer.seconds)
                await let_server_finish()
                cpu[side].append((server.cpu_seconds() - before) / BURST * 1e6)
    return _compared("burst", rates, cpu, at_least=0.5)


async def _fans(sides: dict[str, RunningServer], quick: bool) -> list[Figure]:
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu: dict[str, list[float]] = {side: [] for side in SIDES}
    async with AsyncExitStack() as stack:
        to = {side: await connected(server, SESSIONS, stack) for side, server in sides.items()}
        ids: dict[Connection, str] = {}
        for side in SIDES:
            ids |= await sessions_with_agents(to[side], "script")
        for _ in range(4 if quick else 8):
            for side, server in sides.items():
                before = server.cpu_seconds()
                took, _ = await at_once(to[side], lambda connection: turn(connection, ids[connection], "fan"), check)
                rates[side].append(SESSIONS * FAN / took)
                await let_server_finish()
                cpu[side].append((server.cpu_seconds() - before) / (SESSIONS * FAN) * 1e6)
    return _compared("fan-out", rates, cpu)


def _compared(
    name: str, rates: dict[str, list[float]], cpu: dict[str, list[float]], at_least: float | None = None
) -> list[Figure]:
    """The figures of both sides, without the first round, and the ratios of PostgreSQL's to SQLite's."""
    figures = [median(f"{name}, {side}", rates[side][1:], "events/s") for side in SIDES]
    ratio = figures[1].value / figures[0].value
    figures.append(Figure(f"{name}, ratio", ratio, "x SQLite", at_least=at_least))
    return figures + [median(f"{name}, {side}, CPU of an event", cpu[side][1:], "us") for side in SIDES]


async def _of_two_nodes(url: str, quick: bool) -> list[Figure]:
    """Turns at the node of a session and by way of another one, and the way of an event to followers at both."""
    daemon = "benchmarks.paced_daemon"
    async with cluster_node(url, daemon) as owner, owner.connect() as local:
        session = await new_session(local, "echo", "1 0")
        # The other one comes later, so that the session is not there.
        async with cluster_node(url, daemon) as other, other.connect() as remote:
            return await _forwarded(session, local, remote, quick) + await _followed(session, owner, other, quick)


async def _forwarded(session: str, local: Connection, remote: Connection, quick: bool) -> list[Figure]:
    times: dict[str, list[tuple[float, float]]] = {"local": [], "forwarded": []}
    for _ in range(WARM_UP + (60 if quick else 300)):
        for name, to in (("local", local), ("forwarded", remote)):
            answer = await turn(to, session, "1 0")
            assert answer.first is not None and b"turn_stop" in answer.body
            times[name].append((answer.first * 1000, answer.seconds * 1000))
            await asyncio.sleep(0.01)
    figures = list[Figure]()
    for n, what in enumerate(("first event", "whole turn")):
        found = {name: [pair[n] for pair in pairs[WARM_UP:]] for name, pairs in times.items()}
        more = statistics.median(found["forwarded"]) - statistics.median(found["local"])
        figures.append(Figure(f"forwarded turn, {what}, more than local", more, "ms", at_most=FORWARDED))
        figures += [median(f"{name}, {what}", found[name], "ms") for name in found]
    return figures


async def _followed(session: str, owner: RunningServer, other: RunningServer, quick: bool) -> list[Figure]:
    """The time from the write of an event by its agent to its arrival at a follower of each node."""
    count = 60 if quick else 300
    async with owner.connect() as to, owner.connect() as local, other.connect() as remote:
        running = asyncio.create_task(to.request("POST", f"/session/{session}", message(f"{count} {PACE}")))
        await asyncio.sleep(PACE * 3)
        path = f"/session/{session}/events?until=turn_stop"
        answers = await asyncio.gather(local.request("GET", path), remote.request("GET", path))
        await running
    figures = list[Figure]()
    for name, answer in zip(("its own node", "another node"), answers, strict=True):
        delays = _delays(answer, count)
        for share in (50, 95):
            figures.append(Figure(f"event to a follower at {name}, p{share}", percentile(delays, share / 100), "ms", delays))
    return figures


def _delays(answer: Response, count: int) -> list[float]:
    ends = [end for end, _ in answer.arrivals]
    found = list(PACED.finditer(answer.raw))
    assert [int(event[1]) for event in found] == list(range(count)), "events are missing, or not in order"
    arrived = ((answer.arrivals[bisect_right(ends, event.end() - 1)][1], int(event[2]) / 1e9) for event in found[SKIPPED:])
    return [(at - written) * 1000 for at, written in arrived]
