"""What is measured: each returns its figures, and repeats less if it is `quick`. docs/benchmarks.md says what they are."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Figure, beside, median
from benchmarks.sides import (
    BURST,
    FAN,
    ROOT,
    STEADY,
    Floor,
    Portico,
    Session,
    Side,
    seconds_of,
    settle,
    spawn,
    stop,
    write_config,
)

IMPORTS = "import fastapi, uvicorn, httptools, sse_starlette, psutil, platformdirs, sqlite3"
"""The libraries that the daemon imports."""
RSS = "import psutil; print(psutil.Process().memory_info().rss)"
WARM_UP = 20
SESSIONS, IDLE_SESSIONS, STORED_SESSIONS = 32, 100, 500
BURST_BOUND, FIRST_EVENT, COLD, FAN_BOUND, STARTED_BOUND = 1.8, 4.5, 1.7, 2.2, 1.5
START, ACP, COMMAND, IDLE = 2.1, 1.7, 0.3, 1.5
FURTHER_SESSION = 4.6
"""KB of memory."""
EVENT_CPU, STEADY_CPU, IDLE_CPU, WAKE_UPS = 2.0, 2.75, 0.3, 11.0


async def burst(quick: bool) -> list[Figure]:
    """A turn of 10,000 events in a warm session: its time, and the CPU time of an event with the writes to the store."""
    seconds: tuple[list[float], list[float]] = [], []
    cpu: tuple[list[float], list[float]] = [], []
    async with Portico() as daemon, Floor() as floor:
        sides: list[tuple[Side, Session]] = [(side, (await side.sessions(1))[0]) for side in (daemon, floor)]
        for _ in range(8 if quick else 12):
            for n, (side, session) in enumerate(sides):
                before = side.cpu_seconds()
                seconds[n].append((await session.whole(BURST)).seconds)
                await settle()
                cpu[n].append((side.cpu_seconds() - before) / BURST * 1e6)
    return [
        median("rate", [BURST / one for one in seconds[0][1:]], "events/s"),
        *beside("time", *seconds, "s", BURST_BOUND),
        *beside("CPU time of an event", *cpu, "us", EVENT_CPU),
    ]


async def first_event(quick: bool) -> list[Figure]:
    """From the request to the first event of a turn, in a warm session, one turn after the other."""
    first: tuple[list[float], list[float]] = [], []
    whole: list[float] = []
    async with Portico() as daemon, Floor() as floor:
        sessions = [(await side.sessions(1))[0] for side in (daemon, floor)]
        for _ in range(WARM_UP + (60 if quick else 300)):
            for n, session in enumerate(sessions):
                turn = await session.whole(1)
                first[n].append((turn.first or 0.0) * 1000)
                if n == 0:
                    whole.append(turn.seconds * 1000)
                    await settle(0.005)
    ours, floors = (samples[WARM_UP - 1 :] for samples in first)
    return [*beside("time", ours, floors, "ms", FIRST_EVENT), median("whole turn", whole[WARM_UP:], "ms")]


async def cold(quick: bool) -> list[Figure]:
    """From the request that creates a session to its first event, with the start of the agent."""
    first: tuple[list[float], list[float]] = [], []
    async with Portico() as daemon, Floor() as floor:
        for _ in range(8 if quick else 20):
            for n, side in enumerate((daemon, floor)):
                session = await side.session()
                first[n].append(((await session.whole(1)).first or 0.0) * 1000)
                await session.end()
                await settle(0.1)
    return beside("time", *first, "ms", COLD)


async def fanout(quick: bool) -> list[Figure]:
    """32 sessions with 400 events each, at once: with warm agents, and with the start of 32 agents."""
    warm: tuple[list[float], list[float]] = [], []
    started: tuple[list[float], list[float]] = [], []
    async with Portico() as daemon, Floor() as floor:
        sides: list[tuple[Side, list[Session]]] = [(side, await side.sessions(SESSIONS)) for side in (daemon, floor)]
        for _ in range(3 if quick else 6):
            for n, (side, sessions) in enumerate(sides):
                warm[n].append(await _together(sessions, FAN))
                await settle()
                fresh = [await side.session() for _ in range(SESSIONS)]
                started[n].append(await _together(fresh, FAN))
                await asyncio.gather(*(session.end() for session in fresh))
                await settle()
    return [*beside("warm", *warm, "s", FAN_BOUND), *beside("with the start of agents", *started, "s", STARTED_BOUND)]


async def _together(sessions: list[Session], count: int) -> float:
    """Run one turn in each session at once. Return the seconds until the last event."""
    began = time.perf_counter()
    turns = await asyncio.gather(*(session.whole(count) for session in sessions))
    return max(turn.ended for turn in turns) - began


async def start(quick: bool) -> list[Figure]:
    """From a command to its answer, beside the imports: the daemon, `portico acp`, and a command that ends by itself."""
    daemon, acp, command, imports = [], [], [], []
    for _ in range(10):
        side = Portico()
        try:
            daemon.append(await side.start())
        finally:
            await side.stop()
        imports.append(await seconds_of([sys.executable, "-c", IMPORTS]))
        if not quick:
            acp.append(await _acp_start())
            command.append(await seconds_of([sys.executable, "-m", "gateway", "--version"]))
    figures = beside("healthy", daemon, imports, "s", START)
    if not quick:
        figures += beside("acp, initialize", acp, imports, "s", ACP)[::2]
        figures += beside("--version", command, imports, "s", COMMAND)[::2]
    return figures


async def _acp_start() -> float:
    """Start `portico acp echo`, which starts a daemon, and return the seconds to the answer of `initialize`."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    with tempfile.TemporaryDirectory(prefix="portico-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        command = [sys.executable, "-m", "gateway", "acp", "--config", str(write_config(home)), "echo"]
        began = time.perf_counter()
        process = spawn(command, home, stdin=subprocess.PIPE)
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            assert b"agentCapabilities" in await asyncio.to_thread(process.stdout.readline)
            return time.perf_counter() - began
        finally:
            await asyncio.to_thread(stop, process)


async def memory(quick: bool) -> list[Figure]:
    """Resident memory after the start and one `GET /meta`, beside the imports; then of sessions whose agents were ended."""
    idle = []
    for _ in range(1 if quick else 5):
        async with Portico() as daemon:
            idle.append(await _idle_memory(daemon))
    command = [sys.executable, "-c", f"{IMPORTS}; {RSS}"]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, capture_output=True, timeout=20)
    floor = int(done.stdout) / 1e6
    figures = [median("idle", idle, "MB"), Figure("idle, floor", floor, "MB")]
    figures.append(Figure("idle, ratio", figures[0].value / floor, "x floor", at_most=IDLE))
    if not quick:
        async with Portico(sleep_after=0.05, live_agents=8) as daemon:
            sizes = []
            for _ in range(2):
                # The first ones have one-time allocations.
                for _ in range(STORED_SESSIONS // 4):
                    for session in await daemon.sessions(4):
                        session.wires[0].transport.close()
                await daemon.until_agents_end()
                sizes.append(await _idle_memory(daemon))
        further = (sizes[1] - sizes[0]) * 1000 / STORED_SESSIONS
        figures.append(Figure("each further idle session", further, "KB", at_most=FURTHER_SESSION))
    return figures


async def _idle_memory(daemon: Portico) -> float:
    await daemon.get("/meta", b'"agents"')
    await settle(0.5)
    return daemon.memory()


async def cpu(quick: bool) -> list[Figure]:
    """CPU time of a daemon with 100 idle sessions, and of an event in 32 sessions with 100 events a second each."""
    seconds = 6.0 if quick else 12.0
    async with Portico(live_agents=2 * IDLE_SESSIONS) as daemon:
        await daemon.sessions(IDLE_SESSIONS)
        await settle(6.0)
        before, wake_ups = daemon.cpu_seconds(), daemon.wake_ups()
        await asyncio.sleep(seconds)
        share, wake_ups = (daemon.cpu_seconds() - before) / seconds * 100, daemon.wake_ups() - wake_ups
    figures = [
        Figure("100 idle sessions", share, "% of a core", at_most=IDLE_CPU),
        Figure("100 idle sessions, wake-ups", wake_ups / seconds, "/s", at_most=WAKE_UPS),
    ]
    costs: tuple[list[float], list[float]] = [], []
    async with Portico() as daemon, Floor() as floor:
        sides: list[tuple[Side, list[Session]]] = [(side, await side.sessions(SESSIONS)) for side in (daemon, floor)]
        for _ in range(3 if quick else 6):
            for n, (side, sessions) in enumerate(sides):
                before = side.cpu_seconds()
                await _together(sessions, STEADY)
                await settle()
                costs[n].append((side.cpu_seconds() - before) / STEADY / SESSIONS * 1e6)
    # The fewer events a server finds when it wakes up, the more it takes for each: this depends on the other work on the machine.
    return figures + beside("32 busy sessions, an event", *costs, "us", STEADY_CPU)


MEASUREMENTS = {one.__name__: one for one in (burst, first_event, cold, fanout, start, memory, cpu)}
