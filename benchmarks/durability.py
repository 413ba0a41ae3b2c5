"""The cost of `store.durability = "stored-first"`: the throughput and the latency of both settings, alternately."""

from __future__ import annotations

import asyncio

from benchmarks.client import Connection
from benchmarks.figures import Figure, median
from benchmarks.servers import BURST, let_server_finish, portico
from benchmarks.turns import check, new_session, turn

SETTINGS = ("sent-first", "stored-first")
WARM_UP = 20


async def durability(quick: bool) -> list[Figure]:
    """Measure a burst and the first event with events that are sent before they are stored, and after."""
    rates: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    firsts: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    sent, stored = SETTINGS
    async with (
        portico(durability=sent) as one, portico(durability=stored) as other, one.connect() as to_one, other.connect() as to_other
    ):  # fmt: skip
        connections = dict(zip(SETTINGS, (to_one, to_other), strict=True))
        bursts = {setting: await new_session(to, "script") for setting, to in connections.items()}
        echoes = {setting: await new_session(to, "echo") for setting, to in connections.items()}
        for _ in range(4 if quick else 12):
            for setting, to in connections.items():
                rates[setting].append(await _burst_rate(to, bursts[setting]))
        for _ in range(WARM_UP + (60 if quick else 300)):
            for setting, to in connections.items():
                firsts[setting].append(await _first_event(to, echoes[setting]))
    found = [median(f"rate, {setting}", rates[setting][1:], "events/s") for setting in SETTINGS]
    found += [median(f"first event, {setting}", firsts[setting][WARM_UP:], "ms") for setting in SETTINGS]
    return [*found, Figure("delivered", BURST, "events", at_least=BURST, at_most=BURST, comment="in every repetition, in order")]


async def _burst_rate(to: Connection, session: str) -> float:
    answer = await turn(to, session, "burst")
    count = check(answer.body, BURST)
    await let_server_finish()
    return count / answer.seconds


async def _first_event(to: Connection, session: str) -> float:
    answer = await turn(to, session, "hello")
    await asyncio.sleep(0.005)
    if answer.first is None:
        raise RuntimeError("a turn without an event")
    return answer.first * 1000
