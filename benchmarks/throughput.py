"""Throughput: one burst of events, and a reader that is slower than its agent."""

from __future__ import annotations

import asyncio

from benchmarks.client import Response, encode_request, read_slowly
from benchmarks.figures import Figure, median, median_ratio
from benchmarks.servers import BURST, FLOOD, RunningServer, floor, let_server_finish, portico
from benchmarks.turns import InvalidEvents, check, check_floor, floor_turn, message, new_session, turn

SLOW_SECONDS = 3.0
SLOW_GROWTH_MB = 64.0


async def burst(quick: bool) -> list[Figure]:
    """Measure a turn of 10,000 events in a session with a live agent."""
    ours, floors, delivered = [], [], []
    async with portico() as daemon, floor("script") as bare, daemon.connect() as to_daemon, bare.connect() as to_floor:
        session = await new_session(to_daemon, "script")
        await to_floor.request("POST", "/warm", {"count": 1})
        for _ in range(8 if quick else 12):
            answer = await floor_turn(to_floor, "burst")
            floors.append(check_floor(answer.body, BURST) / answer.seconds)
            await let_server_finish()
            answer = await turn(to_daemon, session, "burst")
            delivered.append(check(answer.body, BURST))
            ours.append(delivered[-1] / answer.seconds)
            await let_server_finish()
    # The first repetition of each side is a warm-up.
    rate, floor_rate = median("rate", ours[1:], "events/s"), median("floor", floors[1:], "events/s")
    return [
        Figure("delivered", min(delivered), "events", delivered, at_least=BURST, at_most=BURST),
        rate,
        floor_rate,
        Figure("ratio", median_ratio(ours[1:], floors[1:]), "x floor", at_least=0.5),
    ]


async def slow_reader(quick: bool) -> list[Figure]:
    """Measure the memory growth for a client that reads 1 KB every 10 ms for a while, in a turn of 100,000 events."""
    seconds = 1.0 if quick else SLOW_SECONDS
    growths, took, floor_growths = [], [], []
    for _ in range(1 if quick else 3):
        async with portico() as daemon, daemon.connect() as to:
            session = await new_session(to, "script")
            body = encode_request("POST", f"/session/{session}", message("flood"), daemon.key)
            growth, raw, spent = await _measure_growth(daemon, body, seconds)
            growths.append(growth)
            took.append(spent)
            if check(Response(raw, 0, None).body, FLOOD) != FLOOD:
                raise InvalidEvents("events are missing")
        async with floor("script") as bare:
            growth, raw, _ = await _measure_growth(bare, encode_request("POST", "/turn", {"prompt": "flood"}), seconds)
            floor_growths.append(growth)
            check_floor(Response(raw, 0, None).body, FLOOD)
    return [
        Figure("delivered", FLOOD, "events", at_least=FLOOD, at_most=FLOOD, comment="in every repetition, in order"),
        Figure("growth", max(growths), "MB", growths, at_most=SLOW_GROWTH_MB, comment="the largest, at the peak of each turn"),
        Figure("floor", max(floor_growths), "MB", floor_growths, comment="bare uvicorn, which makes the emitter wait"),
        median("wall", took, "s"),
    ]


async def _measure_growth(server: RunningServer, body: bytes, seconds: float) -> tuple[float, bytes, float]:
    """Return the maximum growth of a server's memory during a slow read in MB, the response, and its time in seconds."""
    before = peak = server.memory()
    reading = asyncio.create_task(read_slowly(server.port, body, seconds))
    while not reading.done():
        await asyncio.wait([reading], timeout=0.02)
        peak = max(peak, server.memory())
    raw, took = await reading
    return peak - before, raw, took
