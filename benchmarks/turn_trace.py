"""`python -m benchmarks.turn_trace [PAUSE [URL]]`: where the time of a turn goes, as a table of the steps that it passes.

A session with a live echo agent; one turn after the other, PAUSE milliseconds apart (10 by default), with SQLite or the empty
database of PostgreSQL of the URL. The times are medians, in milliseconds since the client began to send the request, and
include the recording.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from benchmarks import servers
from benchmarks.client import connection
from benchmarks.servers import KEY, first_line, serve_command, start, stop, write_config
from benchmarks.turns import new_session, turn

WARM_UP, TURNS = 50, 300
PAUSE = 10.0
"""Milliseconds between two turns. With fewer, the caches of the processor still have the code."""
FIRST, LAST = "**client has the first event**", "**client has the end**"


async def trace(pause: float) -> list[tuple[str, float]]:
    """Return the steps of a turn with their times. `pause` is in seconds."""
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        home = Path(folder)
        recorded = home / "steps.json"
        python, _, _, *arguments = serve_command(write_config(home, {}))
        process = start([python, "-m", "benchmarks.traced_daemon", str(recorded), *arguments], home)
        turns = []
        try:
            port = int((await first_line(process, home)).rsplit(":", 1)[1])
            async with connection(port, KEY) as to:
                session = await new_session(to, "echo")
                for _ in range(WARM_UP + TURNS):
                    began = time.perf_counter()
                    answer = await turn(to, session, "hello")
                    assert answer.first is not None
                    turns.append((began, began + answer.first, began + answer.seconds))
                    await asyncio.sleep(pause)
        finally:
            await asyncio.to_thread(stop, process)
        return _medians(turns[WARM_UP:], json.loads(recorded.read_text()), pause)


def _medians(turns: list[tuple[float, float, float]], recorded: list[tuple[float, str]], pause: float) -> list[tuple[str, float]]:
    """Steps that most turns pass; one that is passed several times counts each time."""
    times: dict[str, list[float]] = defaultdict(list)
    position = 0
    for began, first, ended in turns:
        times[FIRST].append((first - began) * 1000)
        times[LAST].append((ended - began) * 1000)
        seen: Counter[str] = Counter()
        while position < len(recorded) and recorded[position][0] < ended + pause / 2:
            at, step = recorded[position]
            position += 1
            if at >= began:
                seen[step] += 1
                name = step if seen[step] == 1 else f"{step}, {seen[step]}"
                times[name].append((at - began) * 1000)
    passed = [(name, median(samples)) for name, samples in times.items() if len(samples) > len(turns) / 2]
    return sorted(passed, key=lambda step: step[1])


def main() -> None:
    """Print the table."""
    pause = float(sys.argv[1]) if len(sys.argv) > 1 else PAUSE
    servers.store_url = sys.argv[2] if len(sys.argv) > 2 else ""
    before = 0.0
    sys.stdout.write("| step | ms | since the step before |\n|---|---:|---:|\n")
    for name, at in asyncio.run(trace(pause / 1000)):
        sys.stdout.write(f"| {name} | {at:.2f} | {at - before:.2f} |\n")
        before = at


if __name__ == "__main__":
    main()
