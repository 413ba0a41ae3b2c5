"""Latency: the first event of a turn, and the start of the daemon and of other commands."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.client import connection
from benchmarks.figures import Figure, median, median_ratio, percentile
from benchmarks.servers import KEY, first_line, floor, portico, seconds_of, serve_command, start, stop, write_config
from benchmarks.turns import floor_turn, new_session, turn

WARM_UP = 20
FIRST_EVENT, START, ACP, COMMAND = 5.0, 1.9, 1.8, 0.5
"""The bounds of the first event, of the start, of `initialize` and of short commands, as multiples of their floors."""
IMPORTS = "import fastapi, uvicorn, httptools, sse_starlette, psutil, platformdirs, sqlite3"
SHORT = ("--version", "--help", "key")
"""Commands that end by themselves."""


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
        median("median", ours, "ms"),
        Figure("p95", percentile(ours, 0.95), "ms"),
        median("floor", floors, "ms"),
        Figure("ratio", median_ratio(ours, floors), "x floor", at_most=FIRST_EVENT),
        Figure("floor p95", percentile(floors, 0.95), "ms"),
        median("whole turn", whole[WARM_UP:], "ms"),
        median("floor, whole turn", floor_whole[WARM_UP:], "ms"),
    ]


def _first(seconds: float | None) -> float:
    if seconds is None:
        raise RuntimeError("a turn without an event")
    return seconds * 1000


async def starting(quick: bool) -> list[Figure]:
    """Measure the time from a command to its answer: of the daemon, of `portico acp`, and of short commands."""
    times: dict[str, list[float]] = {}
    for _ in range(4 if quick else 10):
        listening, healthy = await one_start()
        found = {"healthy": healthy, "listening": listening, "acp, initialize": await _one_acp_start()}
        with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
            commands = {"floor": ["-c", IMPORTS]} | {name: ["-m", "gateway", name] for name in SHORT}
            for name, arguments in commands.items():
                found[name] = await asyncio.to_thread(seconds_of, [sys.executable, *arguments], Path(folder))
        for name, seconds in found.items():
            times.setdefault(name, []).append(seconds)
    # The first start writes byte code.
    medians = {name: median(name, samples[1:], "s") for name, samples in times.items()}
    medians["floor"].comment = f"python -c '{IMPORTS}'"
    figures = [medians.pop(name) for name in ("healthy", "listening", "floor")]
    floor_seconds = figures[2].value
    figures.append(Figure("ratio", figures[0].value / floor_seconds, "", at_most=START))
    for name, figure in medians.items():
        bound = ACP if name.startswith("acp") else COMMAND
        figures += [
            figure,
            Figure(f"{name}, ratio", figure.value / floor_seconds, "", at_most=bound),
        ]
    return figures


async def _one_acp_start() -> float:
    """Start `portico acp echo`, and return the time to the answer of `initialize`."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        home = Path(folder)
        command = [sys.executable, "-m", "gateway", "acp", "--config", str(write_config(home, {})), "echo"]
        began = time.perf_counter()
        process = start(command, home, stdin=subprocess.PIPE)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            assert "agentCapabilities" in await first_line(process, home)
            return time.perf_counter() - began
        finally:
            await asyncio.to_thread(stop, process)


async def one_start() -> tuple[float, float]:
    """Start a daemon, and return the seconds to its listening line and to the first answer of GET /healthz."""
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
