"""Bursts of agents that speak a protocol of their own: the Agent Client Protocol, and the lines of the claude CLI."""

from __future__ import annotations

from contextlib import AsyncExitStack

import psutil

from benchmarks.figures import Figure, median
from benchmarks.peers.sides import Floor, Portico, PorticoClaude, PorticoStdio, PorticoWebSocket, Session, Side
from benchmarks.servers import BURST, RunningServer, let_server_finish

SIDES: dict[str, type[Side]] = {
    "floor": Floor,
    "ACP agent": Portico,
    "claude": PorticoClaude,
    "ACP agent, by ACP over WebSocket": PorticoWebSocket,
    "ACP agent, by ACP over stdio": PorticoStdio,
}
BOUND = ("ACP agent", "claude")
"""The sides with bounds."""
AT_LEAST, AT_MOST = 0.35, 5.5
"""The rate, and the CPU time for each event, as ratios to the floor's."""
WITHOUT_CPU_TIME = "ACP agent, by ACP over stdio"
"""`portico acp` carries lines only: another process, which it does not wait for, serves them."""


async def stream(quick: bool) -> list[Figure]:
    """Measure bursts of an ACP agent and of claude's stream-json, beside a floor that parses nothing."""
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    delivered: list[float] = []
    async with AsyncExitStack() as stack:
        sessions: dict[str, tuple[Session, RunningServer]] = {}
        for name, kind in SIDES.items():
            side = kind()
            stack.push_async_callback(side.stop)
            await side.start()
            sessions[name] = await side.session(), RunningServer(side.port, psutil.Process(side.process.pid))
        for _ in range(5 if quick else 13):
            for name, (session, server) in sessions.items():
                before = server.cpu_seconds()
                turn = await session.run(BURST)
                # Writes to the store count, too.
                await let_server_finish()
                times[name].append((server.cpu_seconds() - before) / BURST * 1e6)
                rates[name].append(BURST / turn.seconds)
                if turn.numbers != list(range(BURST)):
                    raise RuntimeError(f"{name}: {turn.delivered(BURST)} of {BURST} events were delivered")
                delivered.append(BURST)
    # The first repetition of each side is a warm-up.
    rate = {name: median(f"{name}, rate", samples[1:], "events/s") for name, samples in rates.items()}
    cpu = {name: median(f"{name}, CPU time of an event", samples[1:], "us") for name, samples in times.items()}
    figures = [Figure("delivered", min(delivered), "events", delivered, at_least=BURST, at_most=BURST)]
    for name in SIDES:
        figures += [rate[name]] if name == WITHOUT_CPU_TIME else [rate[name], cpu[name]]
        if name == "floor":
            continue
        bound = name in BOUND
        share, cost = rate[name].value / rate["floor"].value, cpu[name].value / cpu["floor"].value
        figures.append(Figure(f"{name}, rate, ratio", share, "x floor", at_least=AT_LEAST if bound else None))
        if name != WITHOUT_CPU_TIME:
            figures.append(Figure(f"{name}, CPU time, ratio", cost, "x floor", at_most=AT_MOST if bound else None))
    return figures
