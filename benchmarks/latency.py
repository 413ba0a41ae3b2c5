"""Latency: the first event of a turn, and the start of a daemon."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.client import connection
from benchmarks.figures import Figure, median, percentile
from benchmarks.servers import KEY, first_line, floor, portico, seconds_of, serve_command, start, stop, write_config
from benchmarks.turns import floor_turn, new_session, turn

WARM_UP = 20
IMPORTS = "import fastapi, uvicorn, sqlalchemy"


async def first_event(quick: bool) -> list[Figure]:
    """Measure the time from a request to the first text_delta and to the end of the turn, with a live echo agent."""
    ours, whole, floors, floor_whole = [], [], [], []
    async with portico() as daemon, floor("echo") as bare, daemon.connect() as to_daemon, bare.connect() as to_floor:
        session = await new_session(to_daemon, "echo")
        await to_floor.request("POST", "/warm", {"count": 1})
        for _ in range(WARM_UP + (60 if quick else 300)):
            answer = await floor_turn(to_floor, "hello")
            floors.append(_first(answer.first))
            floor_whole.append(answer.seconds * 1000)
            answer = await turn(to_daemon, session, "hello")
            assert b"turn_stop" in answer.body
            ours.append(_first(answer.first))
            whole.append(answer.seconds * 1000)
            await asyncio.sleep(0.005)
    ours, floors = ours[WARM_UP:], floors[WARM_UP:]
    return [
        median("median", ours, "ms", at_most=3.0),
        Figure("p95", percentile(ours, 0.95), "ms"),
        median("floor", floors, "ms"),
        Figure("floor p95", percentile(floors, 0.95), "ms"),
        median("whole turn", whole[WARM_UP:], "ms"),
        median("floor, whole turn", floor_whole[WARM_UP:], "ms"),
    ]


def _first(seconds: float | None) -> float:
    if seconds is None:
        raise RuntimeError("a turn without an event")
    return seconds * 1000


async def starting(quick: bool) -> list[Figure]:
    """Measure the time from the command to the listening line and to the first successful GET /healthz."""
    listening, healthy, floors = [], [], []
    for _ in range(4 if quick else 10):
        line, health = await _one_start()
        listening.append(line)
        healthy.append(health)
        with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
            floors.append(await asyncio.to_thread(seconds_of, [sys.executable, "-c", IMPORTS], Path(folder)))
    # The first start writes byte code.
    return [
        median("healthy", healthy[1:], "s", at_most=0.8),
        median("listening", listening[1:], "s"),
        median("floor", floors[1:], "s", comment=f"python -c '{IMPORTS}'"),
    ]


async def _one_start() -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        home = Path(folder)
        command = serve_command(write_config(home, {}))
        began = time.perf_counter()
        process = start(command, home)
        try:
            port = int((await first_line(process, home)).rsplit(":", 1)[1])
            listening = time.perf_counter() - began
            async with connection(port, KEY) as to:
                assert b'"ok"' in (await to.request("GET", "/healthz")).body
            return listening, time.perf_counter() - began
        finally:
            await asyncio.to_thread(stop, process)
